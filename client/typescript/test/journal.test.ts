// A journal whose storage has no space for a while: writes are refused, none of them was sent or reappears after a
// crash, and the next writes get their numbers.

import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";
import {
  append, isConditionFailed, JournalError, NotExecutedError, type Pending, setEntity, type Writer,
} from "../src/index.js";
import { Journal, type JournalStorage, memoryJournal } from "../src/journal.js";
import { decodeRecords } from "../src/records.js";
import { clientOf, type Fault, FaultProxy, payloads, startLedger } from "./support.js";

const scope = { organization: "acme", vault: "main" };

/** A storage in memory, with or without space, which can be paused in the middle of a change. */
class Storage implements JournalStorage {
  readonly name = "the journal of the test";
  groups: Uint8Array[] = [];
  full = false;
  refused = 0;
  private gate: Promise<void> = Promise.resolve();

  /** Lets no change end until the returned function is called. */
  hold(): () => void {
    let release = (): void => {};
    this.gate = new Promise((resolve) => (release = resolve));
    return release;
  }

  async extend(records: Uint8Array): Promise<void> {
    await this.change([...this.groups, records]);
  }

  async replace(records: Uint8Array): Promise<void> {
    await this.change([records]);
  }

  private async change(groups: Uint8Array[]): Promise<void> {
    await this.gate;
    if (this.full) {
      this.refused++;
      throw new JournalError("no-space", "no room");
    }
    this.groups = groups.map((g) => g.slice());
  }

  async close(): Promise<void> {}

  /** What a program would find in the journal after a crash now. */
  async reopened(): Promise<{ tags: string[]; nextSequence: bigint }> {
    const copy = new Storage();
    const records = this.groups.flatMap((g) => decodeRecords(g));
    const [stream] = (await Journal.open(copy, records, {})).contents();
    return { tags: stream?.entries.map((e) => e.tag) ?? [], nextSequence: stream?.head.nextSequence ?? 0n };
  }
}

const submit = (w: Writer, ...tags: string[]): Pending[] => tags.map((tag) => w.submit([append(tag)], { tag }));

async function refused(pendings: Pending[]): Promise<void> {
  for (const p of pendings) {
    await assert.rejects(p.settled, (e) => {
      assert.ok(e instanceof NotExecutedError, String(e));
      assert.ok(e.cause instanceof JournalError && e.cause.reason === "no-space", String(e.cause));
      return true;
    });
    assert.equal(p.sequence, 0n);
  }
}

async function settled(pendings: Pending[]): Promise<bigint[]> {
  const receipts = await Promise.all(pendings.map((p) => p.settled));
  for (const p of pendings) await p.acknowledge();
  return receipts.map((r) => r.sequence);
}

async function setup(t: TestContext): Promise<{ address: string; storage: Storage; journal: Journal; writer: Writer }> {
  const { address } = await startLedger(t);
  const storage = new Storage();
  const journal = await Journal.open(storage, [], {});
  const writer = await clientOf(t, address).openWriter({ scope, clientId: "till", journal });
  return { address, storage, journal, writer };
}

test("writes for which there is no room are refused, and their numbers are used again", async (t) => {
  const { address, storage, writer } = await setup(t);
  assert.deepEqual(await settled(submit(writer, "a", "b")), [1n, 2n]);
  storage.full = true;
  // The second write arrives while the storage is processing the first.
  const release = storage.hold();
  const first = submit(writer, "c");
  assert.equal(first[0]!.sequence, 3n);
  const second = submit(writer, "d", "e");
  release();
  await refused([...first, ...second]);
  assert.equal(storage.refused, 1);
  assert.deepEqual(writer.position, { ...writer.position, nextSequence: 3n, pending: 0 });
  await refused(submit(writer, "f"));
  assert.equal(writer.error, undefined, "the Writer goes on");
  storage.full = false;
  assert.deepEqual(await settled(submit(writer, "c", "g")), [3n, 4n]);
  assert.deepEqual(payloads(address), ["a", "b", "c", "g"]);
});

test("a write that was refused for want of room does not come back after a crash", async (t) => {
  const { address, storage, journal, writer } = await setup(t);
  const other = await clientOf(t, address).openWriter({ scope, clientId: "other", journal });
  const committed = submit(writer, "a");
  await committed[0]!.settled;
  storage.full = true;
  const release = storage.hold();
  const gone = [...submit(writer, "b"), ...submit(other, "c")];
  // This sync ends together with the Writers', and the next flush begins before they learn of it.
  const again = journal.sync().catch(() => {
    storage.full = false;
    return journal.sync();
  });
  release();
  await again;
  await refused(gone);
  assert.deepEqual(await storage.reopened(), { tags: ["a"], nextSequence: 2n });
  assert.deepEqual(await settled(submit(other, "d")), [1n]);
  assert.deepEqual(await settled(submit(writer, "e")), [2n]);
  await journal.sync();
  assert.deepEqual(await storage.reopened(), { tags: ["a"], nextSequence: 3n });
  assert.deepEqual(payloads(address).sort(), ["a", "d", "e"]);
});

test("a clock that is ahead drops no tags", async (t) => {
  const { writer } = await setup(t);
  const acknowledge = async (tag: string): Promise<void> => {
    const p = submit(writer, tag)[0]!;
    await p.settled;
    await p.acknowledge();
  };
  await acknowledge("rent");
  const ahead = Date.now() + 48 * 3600 * 1000;
  const clock = t.mock.method(Date, "now", () => ahead);
  await acknowledge("gas");
  clock.mock.restore();
  await assert.rejects(submit(writer, "rent")[0]!.settled, { name: "JournalError", reason: "tag-in-use" });
});

test("what is settled while there is no room is stored once there is some", async (t) => {
  const { address, storage, journal, writer } = await setup(t);
  const [a] = submit(writer, "a");
  await writer.flush();
  storage.full = true;
  await a!.acknowledge();
  await refused(submit(writer, "b"));
  await assert.rejects(journal.sync(), { name: "JournalError", reason: "no-space" });
  assert.deepEqual((await storage.reopened()).tags, ["a"], "the acknowledgement waits");
  storage.full = false;
  await journal.sync();
  assert.deepEqual(await storage.reopened(), { tags: [], nextSequence: 2n });
  // Its tag is known as used; that of the refused write is free.
  await assert.rejects(submit(writer, "a")[0]!.settled, { name: "JournalError", reason: "tag-in-use" });
  assert.deepEqual(await settled(submit(writer, "b")), [2n]);
  assert.deepEqual(payloads(address), ["a", "b"]);
});

// When the space runs out: at which call, and whether the answer to the first batch is lost.
const ends: { name: string; at: [procedure: string, number: number]; lost: boolean }[] = [
  { name: "before a session is opened", at: ["WriteBatch", 1], lost: true },
  { name: "while a session is opened", at: ["OpenSession", 2], lost: true },
  { name: "before a refused write leaves the journal", at: ["WriteBatch", 1], lost: false },
];
for (const { name, at, lost } of ends) {
  test(`a Writer waits for room with what is no write: ${name}`, async (t) => {
    const { address } = await startLedger(t);
    const storage = new Storage();
    const journal = await Journal.open(storage, [], {});
    const proxy = await FaultProxy.start(t, address);
    const writer = await clientOf(t, proxy.address).openWriter({ scope, clientId: "till", journal });
    proxy.fault = (procedure): Fault => {
      if (procedure === at[0] && proxy.count(procedure) === at[1]) storage.full = true;
      return lost && procedure === "WriteBatch" && proxy.count(procedure) === 1 ? "lose" : "none";
    };
    const p = writer.submit([setEntity("stock", "1", { condition: { mustExist: true } })], { tag: "a" });
    while (storage.refused < 3 && writer.error === undefined) await new Promise((resolve) => setTimeout(resolve, 10));
    assert.equal(writer.error, undefined, "the Writer goes on");
    assert.equal(proxy.count("OpenSession"), at[0] === "OpenSession" ? 2 : 1, "no attempt is sent that is not stored");
    storage.full = false;
    await assert.rejects(p.settled, (e) => e instanceof NotExecutedError && isConditionFailed(e));
    assert.equal(proxy.count("OpenSession"), lost ? 2 : 1);
    await writer.resume();
    assert.deepEqual(await settled(submit(writer, "b")), [1n]);
    await journal.sync();
    assert.deepEqual(await storage.reopened(), { tags: [], nextSequence: 2n });
    assert.deepEqual(payloads(address), ["b"]);
  });
}

test("a Writer that waits for room can be closed, and its journal has what is unsettled", async (t) => {
  const { address } = await startLedger(t);
  const storage = new Storage();
  const journal = await Journal.open(storage, [], {});
  const proxy = await FaultProxy.start(t, address);
  const writer = await clientOf(t, proxy.address).openWriter({ scope, clientId: "till", journal });
  proxy.fault = (procedure): Fault => {
    storage.full ||= procedure === "WriteBatch";
    return "none";
  };
  const p = writer.submit([setEntity("stock", "1", { condition: { mustExist: true } })], { tag: "a" });
  while (storage.refused < 2 && writer.error === undefined) await new Promise((resolve) => setTimeout(resolve, 10));
  await assert.rejects(writer.close({ signal: AbortSignal.abort() }), { name: "UnsettledError" });
  await assert.rejects(p.settled, { name: "OutcomeUnknownError" });
  assert.deepEqual((await storage.reopened()).tags, ["a"]);
  storage.full = false;
  const again = await clientOf(t, address).openWriter({ scope, clientId: "till", journal });
  assert.deepEqual(await settled(submit(again, "b")), [1n], "the refused write has left the journal");
});

test("writes that wait for a number get the free ones in their order", async (t) => {
  const { address } = await startLedger(t);
  const storage = new Storage();
  const journal = await Journal.open(storage, [], {});
  const writer = await clientOf(t, address).openWriter({ scope, clientId: "till", journal, maxPending: 2 });
  storage.full = true;
  const release = storage.hold();
  const gone = submit(writer, "a", "b");
  const waiting = submit(writer, "c", "d", "e");
  assert.deepEqual(waiting.map((p) => p.sequence), [0n, 0n, 0n]);
  const told = refused(gone);
  const enough = gone[1]!.settled.catch(() => (storage.full = false));
  release();
  await Promise.all([told, enough]);
  assert.deepEqual(await settled(waiting), [1n, 2n, 3n]);
  assert.deepEqual(payloads(address), ["c", "d", "e"]);
});

test("a storage that fails otherwise is not taken for one without room", async (t) => {
  const { address, storage, writer } = await setup(t);
  storage.extend = () => Promise.reject(new Error("the disk is on fire"));
  await assert.rejects(submit(writer, "a")[0]!.settled, { name: "OutcomeUnknownError" });
  assert.match(String(writer.error?.cause), /the disk is on fire; writes that were not answered are unsettled/);
  assert.deepEqual(payloads(address), []);
});

test("a storage says how much it lacks for a write and the rewrite after it", async (t) => {
  const { address } = await startLedger(t);
  const asked: number[] = [];
  const storage = Object.assign(new Storage(), {
    lacksRoom: (bytes: number): string | undefined => {
      asked.push(bytes);
      return bytes > 5000 ? `${bytes} bytes are too many` : undefined;
    },
  });
  const journal = await Journal.open(storage, [], {});
  const writer = await clientOf(t, address).openWriter({ scope, clientId: "till", journal });
  const [a] = submit(writer, "a");
  await a!.settled;
  const [b] = submit(writer, "b");
  await b!.settled;
  assert.ok(asked[1]! > asked[0]!, "what is not acknowledged is stored once more by a rewrite");
  await assert.rejects(writer.write([append("c".repeat(2000))]), /bytes are too many/);
  assert.deepEqual(writer.position, { ...writer.position, nextSequence: 3n, pending: 0 });
  assert.deepEqual(payloads(address), ["a", "b"]);
});

test("a journal in memory has the bounds of the others", async () => {
  await assert.rejects(memoryJournal({ maxBytes: 1 }), /maxBytes is 1, must be 16384 to/);
});
