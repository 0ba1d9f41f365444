// The page of the browser tests: seqledger conformance drives it, or a test calls window.till.

import { Code, ConnectError, createClient as createCalls } from "@connectrpc/connect";
import { createConnectTransport, createGrpcWebTransport } from "@connectrpc/connect-web";
import { LedgerService } from "../../src/gen/seqledger/v1/ledger_pb.js";
import { WriteErrorCode, WriteErrorSchema } from "../../src/gen/seqledger/v1/types_pb.js";
import {
  append, type ClientOptions, createClient, indexedDbJournal, type Journal, type Pending, setEntity, type Writer,
} from "../../src/index.js";
import { type Command, drive } from "../drive.js";

declare global {
  interface Window {
    /** Reports to the program that opened the page. */
    say?: (event: object) => void;
    obey: (c: Command) => Promise<void>;
    till: typeof till;
    grpcWeb: typeof grpcWeb;
  }
}

window.obey = drive({
  openJournal: (c) => indexedDbJournal("driver", c.journalBytes === undefined ? {} : { maxBytes: c.journalBytes }),
  // This uses both ways to send, because a page has a WebSocket.
  options: { streamCalls: 4 },
  say: (event) => window.say?.(event),
  exit: () => window.say?.({ event: "exit" }),
});

/** TillOptions are the options of a till's journal and of its client. */
export interface TillOptions {
  wait?: boolean;
  mustExist?: boolean;
  token?: string;
  /** The client gets the page's own transport, which uses fetch. */
  transport?: true;
}

let journal: Journal & { readonly persistent: boolean };
let writer: Writer;
let pendings: Pending[] = [];

/** A till, which writes what it is told, each tag once. */
const till = {
  async open(server: string, { token, transport, ...options }: TillOptions = {}): Promise<string[]> {
    journal = await indexedDbJournal("till", { ...options, maxBytes: 1 << 20 });
    const clientOptions: ClientOptions = { baseUrl: server };
    if (token !== undefined) clientOptions.token = () => token;
    if (transport) clientOptions.transport = createConnectTransport({ baseUrl: server, useBinaryFormat: true });
    const client = createClient(clientOptions);
    writer = await client.openWriter({ scope: { organization: "acme", vault: "main" }, clientId: "till", journal });
    pendings = [...writer.recovered];
    return pendings.map((p) => p.tag);
  },
  submit(...tags: string[]): void {
    for (const tag of tags) pendings.push(writer.submit([append(tag)], { tag }));
  },
  /** Sets an entity if it exists. */
  replace(key: string, tag: string): void {
    pendings.push(writer.submit([setEntity(key, tag, { condition: { mustExist: true } })], { tag }));
  },
  resume: (): Promise<void> => writer.resume(),
  /** Waits until everything that was submitted is in the journal. */
  async stored(): Promise<void> {
    await Promise.all(pendings.map((p) => p.accepted));
    await journal.sync();
  },
  /** Waits for all outcomes, acknowledges the commits, and returns the outcome of each write. */
  async settle(): Promise<string[]> {
    const outcomes: string[] = [];
    for (const p of pendings) {
      try {
        await p.settled;
        outcomes.push(`${p.tag} committed`);
        await p.acknowledge();
      } catch (e) {
        outcomes.push(`${p.tag} ${String(e)}`);
      }
    }
    pendings = [];
    return outcomes;
  },
  /** The Writer's position, and its error if it has ended. */
  position(): { session: string; next: string; error: string } {
    const { session, nextSequence } = writer.position;
    return { session: String(session), next: String(nextSequence), error: String(writer.error?.cause ?? "") };
  },
  /** Whether the browser has agreed to keep the journal. */
  persistent: (): boolean => journal.persistent,
  async close(): Promise<void> {
    await writer.close();
    await journal.close();
  },
  /** Writes for a time, with a journal, and returns how many writes per second were settled. */
  async load(ms: number, outstanding: number): Promise<number> {
    const began = performance.now();
    let settled = 0;
    await Promise.all(Array.from({ length: outstanding }, async () => {
      while (performance.now() < began + ms) {
        await writer.write([append("load")]);
        settled++;
      }
    }));
    return settled / ((performance.now() - began) / 1000);
  },
};
window.till = till;

/** The results of some calls over gRPC-Web, where status, message and details are trailers in the body. */
async function grpcWeb(server: string, token: string): Promise<Record<string, string>> {
  const ledger = createCalls(LedgerService, createGrpcWebTransport({
    baseUrl: server,
    interceptors: [(next) => (request) => {
      request.header.set("Authorization", `Bearer ${token}`);
      return next(request);
    }],
  }));
  const scope = { organization: "acme", vault: "main" };
  const write = async (sequence: bigint): Promise<string> => {
    const payload = new TextEncoder().encode(`write ${sequence}`);
    const operations = [{ operation: { case: "append" as const, value: { payload } } }];
    const { receipt } = await ledger.write({ scope, clientId: "till", sequence, operations });
    return `committed ${receipt?.sequence}`;
  };
  const watch = async (): Promise<string> => {
    for await (const { block } of ledger.watch({ scope, fromHeight: 1n })) return `block ${block?.header?.height}`;
    return "no block";
  };
  const said: Record<string, string> = {};
  const calls = {
    write: () => write(1n), again: () => write(1n), gap: () => write(5n), watch,
    entity: async () => String((await ledger.getEntity({ scope, key: "absent" })).entity),
  };
  for (const [name, call] of Object.entries(calls)) {
    said[name] = await call().catch((e: unknown) => {
      const error = ConnectError.from(e);
      const [detail] = error.findDetails(WriteErrorSchema);
      return `${Code[error.code]} ${detail === undefined ? error.rawMessage : WriteErrorCode[detail.code]}`;
    });
  }
  return said;
}
window.grpcWeb = grpcWeb;
document.title = "ready";
