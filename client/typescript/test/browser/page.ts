// The page of the browser tests: seqledger conformance drives it, or a test calls window.till.

import { append, createClient, indexedDbJournal, type Journal, type Pending, type Writer } from "../../src/index.js";
import { type Command, drive } from "../drive.js";

declare global {
  interface Window {
    /** Tells the program that has opened the page. */
    say?: (event: object) => void;
    obey: (c: Command) => Promise<void>;
    till: typeof till;
  }
}

window.obey = drive({
  openJournal: (c) => indexedDbJournal("driver", c.journalBytes === undefined ? {} : { maxBytes: c.journalBytes }),
  // Both ways to send, because a page has a WebSocket.
  options: { streamCalls: 4 },
  say: (event) => window.say?.(event),
  exit: () => window.say?.({ event: "exit" }),
});

/** TillOptions are options of a till's journal, and the token of its client. */
export interface TillOptions {
  wait?: boolean;
  mustExist?: boolean;
  token?: string;
}

let journal: Journal & { readonly persistent: boolean };
let writer: Writer;
let pendings: Pending[] = [];

/** A till, which writes what it is told, each tag once. */
const till = {
  async open(server: string, { token, ...options }: TillOptions = {}): Promise<string[]> {
    journal = await indexedDbJournal("till", { ...options, maxBytes: 1 << 20 });
    const client = createClient({ baseUrl: server, ...(token === undefined ? {} : { token: () => token }) });
    writer = await client.openWriter({ scope: { organization: "acme", vault: "main" }, clientId: "till", journal });
    pendings = [...writer.recovered];
    return pendings.map((p) => p.tag);
  },
  submit(...tags: string[]): void {
    for (const tag of tags) pendings.push(writer.submit([append(tag)], { tag }));
  },
  /** Waits until everything that was submitted is in the journal. */
  async stored(): Promise<void> {
    await Promise.all(pendings.map((p) => p.accepted));
    await journal.sync();
  },
  /** Waits for all outcomes, acknowledges the commits, and returns what became of each. */
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
  /** Where the Writer stands, and why it has ended if it has. */
  position(): { session: string; next: string; error: string } {
    const { session, nextSequence } = writer.position;
    return { session: String(session), next: String(nextSequence), error: String(writer.error?.cause ?? "") };
  },
  /** Whether the browser has promised to keep the journal. */
  persistent: (): boolean => journal.persistent,
  async close(): Promise<void> {
    await writer.close();
    await journal.close();
  },
  /** Writes for a time, with a journal, and returns how many writes were settled in a second. */
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
document.title = "ready";
