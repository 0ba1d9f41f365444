// The client under test of seqledger conformance, with a Writer. The protocol is in docs/conformance.md. driver.ts is
// the program for Node, browser/driver.ts the one for a browser page.

import {
  append, type Client, type ClientOptions, ClosedError, codeOf, createClient, type Journal, JournalError, LedgerError,
  NotExecutedError, type Operation, type Pending, setEntity, UnsettledError, WriteErrorCode, type Writer,
} from "../src/index.js";

export interface Command {
  do: "open" | "submit" | "acknowledge" | "resume" | "close";
  server: string;
  organization: string;
  vault: string;
  clientId: string;
  journal: string;
  journalBytes?: number;
  id: string;
  set?: string;
  if?: "absent" | "present";
  bytes?: number;
}

/** Surroundings are the differences between Node and a page. */
export interface Surroundings {
  openJournal(c: Command): Promise<Journal>;
  options: Partial<ClientOptions>;
  /** Makes the client, instead of createClient. */
  connect?(options: ClientOptions): Client;
  say(event: object): void;
  /** Ends the program, after close. */
  exit(): void;
}

let around: Surroundings;
let client: Client | undefined;
let journal: Journal | undefined;
let writer: Writer | undefined;
const pending = new Map<string, Pending>();

/** drive returns the function that executes a command. */
export function drive(surroundings: Surroundings): (c: Command) => Promise<void> {
  around = surroundings;
  let before = Promise.resolve();
  return (c) => (before = before.then(() => obey(c)));
}

const say = (event: object): void => around.say(event);

/** The name of the refusal, or undefined. */
function codeName(error: unknown): string | undefined {
  const code = codeOf(error);
  return code === WriteErrorCode.UNSPECIFIED ? undefined : WriteErrorCode[code];
}

async function open(c: Command): Promise<void> {
  client = (around.connect ?? createClient)({ baseUrl: c.server, ...around.options });
  try {
    journal = await around.openJournal(c);
  } catch (e) {
    if (!(e instanceof JournalError)) throw e;
    ended(e);
    return;
  }
  const scope = { organization: c.organization, vault: c.vault };
  while (writer === undefined) {
    try {
      writer = await client.openWriter({ scope, clientId: c.clientId, journal });
    } catch (e) {
      if (!(e instanceof LedgerError) || e.isFinal) {
        ended(e);
        return;
      }
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  }
  say({ event: "opened", recovered: writer.recovered.map((p) => p.tag) });
  for (const p of writer.recovered) void follow(p);
  void writer.done.then((e) => {
    if (!(e.cause instanceof ClosedError)) ended(e);
  });
}

function ended(e: unknown): void {
  const unsettled = e instanceof UnsettledError ? e.writes.map((p) => p.tag) : [];
  say({ event: "ended", code: codeName(e), message: String(e), unsettled });
}

async function follow(p: Pending): Promise<void> {
  pending.set(p.tag, p);
  const event = { event: "outcome", id: p.tag };
  try {
    const receipt = await p.settled;
    say({ ...event, outcome: "committed", sequence: String(receipt.sequence), txId: receipt.txId });
  } catch (e) {
    const failed = e instanceof NotExecutedError ? "not_executed" : "unknown";
    const outcome = e instanceof JournalError && e.reason === "tag-in-use" ? "known" : failed;
    say({ ...event, outcome, code: codeName(e), message: String(e) });
  }
}

function operation(c: Command): Operation {
  const text = c.id.padEnd(c.bytes ?? 0);
  if (c.set === undefined) return append(text);
  if (c.if === undefined) return setEntity(c.set, text);
  return setEntity(c.set, text, { condition: c.if === "absent" ? { notExists: true } : { mustExist: true } });
}

async function obey(c: Command): Promise<void> {
  switch (c.do) {
    case "open":
      return open(c);
    case "submit":
      if (writer !== undefined) void follow(writer.submit([operation(c)], { tag: c.id }));
      return;
    case "acknowledge":
      return pending.get(c.id)?.acknowledge();
    case "resume":
      await writer?.resume();
      say({ event: "resumed" });
      return;
    case "close":
      // What is unsettled was said.
      await writer?.close().catch(() => {});
      await journal?.close();
      await client?.close();
      around.exit();
  }
}
