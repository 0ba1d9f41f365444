import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";
import {
  append, type Client, codeOf, deleteEntity, isConditionFailed, isFenced, LedgerError, memoryJournal, NotExecutedError,
  OutcomeUnknownError, type Pending, setEntity, StoppedError, UnsettledError, WriteErrorCode, type Writer,
} from "../src/index.js";
import { clientOf, FaultProxy, Ledger, payloads, startLedger, temporary } from "./support.js";

const scope = { organization: "acme", vault: "main" };
const create = (key: string) => setEntity(key, "1", { condition: { notExists: true } });

interface Setup {
  address: string;
  proxy: FaultProxy;
  client: Client;
  writer: Writer;
}

async function setup(t: TestContext): Promise<Setup> {
  const { address } = await startLedger(t);
  const proxy = await FaultProxy.start(t, address);
  const client = clientOf(t, proxy.address);
  return { address, proxy, client, writer: await client.openWriter({ scope, clientId: "w" }) };
}

/** The outcome of a write: its number, or the kind of its error. */
async function outcome(p: Pending): Promise<string> {
  try {
    return `committed ${(await p.settled).sequence}`;
  } catch (e) {
    if (!(e instanceof NotExecutedError)) return String(e);
    return e.cause instanceof StoppedError ? "behind a refusal" : `refused ${WriteErrorCode[codeOf(e)]}`;
  }
}

const outcomes = (pendings: Pending[]): Promise<string[]> => Promise.all(pendings.map(outcome));

test("writes are numbered, and each is committed once", async (t) => {
  const { address, writer } = await setup(t);
  const receipt = await writer.write([append("one")]);
  assert.equal(receipt.sequence, 1n);
  assert.equal(receipt.replayed, false);
  assert.match(receipt.txId, /^[0-9a-f-]{36}$/);
  assert.ok(receipt.committedAt!.nanoseconds < 1e9 && receipt.committedAt!.date.getUTCFullYear() > 2000);
  const pendings = Array.from({ length: 300 }, (_, i) => writer.submit([append(`burst ${i}`)]));
  assert.deepEqual(await outcomes(pendings), pendings.map((_, i) => `committed ${i + 2}`));
  assert.deepEqual(payloads(address), ["one", ...pendings.map((_, i) => `burst ${i}`)]);
  assert.deepEqual(writer.position.nextSequence, 302n);
});

test("a lost answer, a lost request and a status of a proxy lead to the same request again", async (t) => {
  const { address, proxy, writer } = await setup(t);
  const faults = ["lose", "drop", 503, 404, 401, "lose"] as const;
  let n = 0;
  proxy.fault = () => faults[n++] ?? "none";
  const receipt = await writer.write([append("once")]);
  assert.equal(receipt.replayed, true);
  assert.equal(proxy.count("WriteBatch"), faults.length + 1);
  assert.deepEqual(payloads(address), ["once"]);
});

test("a refusal stops the Writer until resume, and its number is used again", async (t) => {
  const { proxy, writer } = await setup(t);
  await writer.write([create("taken")]);
  const pendings = [
    writer.submit([append("1")]), writer.submit([create("taken")]), writer.submit([append("3")]),
  ];
  assert.deepEqual(await outcomes(pendings), ["committed 2", "refused KEY_EXISTS", "behind a refusal"]);
  await assert.rejects(pendings[1]!.settled, (e) => isConditionFailed(e));
  await assert.rejects(pendings[2]!.settled, (e) => !isConditionFailed(e) && e instanceof NotExecutedError);
  assert.ok(writer.error instanceof StoppedError && writer.error.sequence === 3n);
  await assert.rejects(writer.write([append("4")]), NotExecutedError);
  await writer.resume();
  assert.equal((await writer.write([append("5")])).sequence, 3n);
  assert.equal(proxy.count("OpenSession"), 1, "no copy was under way, so one session must do");
});

test("the callers of write need no resume", async (t) => {
  const { writer } = await setup(t);
  await writer.write([create("taken")]);
  await assert.rejects(writer.write([create("taken")]), isConditionFailed);
  assert.equal((await writer.write([append("on")])).sequence, 2n);
});

test("a refusal is fenced while copies are under way", async (t) => {
  const { address, proxy, writer } = await setup(t);
  await writer.write([create("taken")]);
  let first = true;
  proxy.fault = (procedure) => {
    if (procedure !== "WriteBatch" || !first) return "none";
    first = false;
    return "hold";
  };
  const pendings = [writer.submit([create("taken")]), writer.submit([append("old 3")])];
  assert.deepEqual(await outcomes(pendings), ["refused KEY_EXISTS", "behind a refusal"]);
  assert.equal(proxy.count("OpenSession"), 2, "a session must fence the copies");
  await writer.resume();
  await writer.write([deleteEntity("taken")]);
  await writer.resume();
  assert.equal(await proxy.release(), 1);
  assert.equal((await writer.write([append("new 3")])).sequence, 3n);
  assert.deepEqual(payloads(address), ["new 3"]);
});

test("a refused write that committed through a copy is a commit", async (t) => {
  const { address, proxy, client, writer } = await setup(t);
  const other = await client.openWriter({ scope, clientId: "other" });
  let batches = 0;
  proxy.fault = async (procedure) => {
    if (procedure === "WriteBatch" && batches++ === 0) {
      // The first copy is in flight while the condition does not hold for the second one.
      proxy.fault = async (next) => {
        if (next === "OpenSession") {
          proxy.fault = () => "none";
          await other.write([deleteEntity("taken")]);
          await proxy.release();
        }
        return "none" as const;
      };
      await other.write([create("taken")]);
      return "hold";
    }
    return "none";
  };
  const pendings = [writer.submit([create("taken"), append("2")]), writer.submit([append("3")])];
  assert.deepEqual(await outcomes(pendings), ["committed 1", "committed 2"]);
  assert.equal((await pendings[0]!.settled).replayed, true);
  assert.equal(writer.error, undefined);
  assert.deepEqual(payloads(address), ["2", "3"]);
});

test("a Writer that is fenced ends, and says what is not settled", async (t) => {
  const { client, writer } = await setup(t);
  const next = await client.openWriter({ scope, clientId: "w" });
  const p = writer.submit([append("late")]);
  await assert.rejects(p.settled, (e) => e instanceof NotExecutedError && isFenced(e));
  assert.ok(writer.error instanceof UnsettledError && writer.error.writes.length === 0);
  assert.equal((await next.write([append("mine")])).sequence, 1n);
});

test("a fenced Writer does not know what became of a copy", async (t) => {
  const { address, proxy, writer } = await setup(t);
  const other = clientOf(t, address);
  proxy.fault = async () => {
    proxy.fault = () => "none";
    await other.openWriter({ scope, clientId: "w" });
    return "hold" as const;
  };
  const p = writer.submit([append("?")]);
  await assert.rejects(p.settled, (e) => e instanceof OutcomeUnknownError && isFenced(e) && e.sequence === 1n);
  assert.deepEqual((await writer.done).writes, [p]);
  await proxy.release();
  assert.deepEqual(payloads(address), []);
});

test("a kill and a restart of the server are waited out", async (t) => {
  const ledger = await Ledger.start(temporary(t));
  const writer = await clientOf(t, ledger.address).openWriter({ scope, clientId: "w" });
  await writer.write([append("before")]);
  const again = ledger.restart();
  const p = writer.submit([append("during")]);
  const restarted = await again;
  t.after(() => restarted.kill());
  assert.equal((await p.settled).sequence, 2n);
  assert.deepEqual(payloads(ledger.address), ["before", "during"]);
});

test("a signal ends the wait and not the write", async (t) => {
  const { proxy, writer } = await setup(t);
  const abort = new AbortController();
  let faults = 0;
  proxy.fault = (procedure) => {
    if (procedure !== "WriteBatch" || faults++ > 0) return "none";
    abort.abort(new Error("no patience"));
    return "lose";
  };
  const error: unknown = await writer.write([append("x")], { signal: abort.signal }).catch((e: unknown) => e);
  assert.ok(error instanceof OutcomeUnknownError && error.sequence === 1n, String(error));
  assert.equal((await error.pending.settled).replayed, true);
  await assert.rejects(writer.write([append("y")], { signal: abort.signal }), NotExecutedError);
});

test("a write that was never sent is not executed, and one that was sent is not settled", async (t) => {
  const { address, proxy, writer } = await setup(t);
  const ledger = await Ledger.start(temporary(t));
  const alone = await clientOf(t, ledger.address).openWriter({ scope, clientId: "w" });
  await ledger.kill();
  const unsent = alone.submit([append("x")]);
  await alone.close({ signal: AbortSignal.timeout(100) });
  await assert.rejects(unsent.settled, NotExecutedError);
  const closing = new AbortController();
  proxy.fault = () => {
    closing.abort();
    return "drop";
  };
  const sent = writer.submit([append("x")]);
  await assert.rejects(writer.close({ signal: closing.signal }), (e) =>
    e instanceof UnsettledError && e.writes.length === 1);
  await assert.rejects(sent.settled, OutcomeUnknownError);
  assert.deepEqual(payloads(address), []);
});

test("submit bounds what waits, and refuses what no write can have", async (t) => {
  const { client } = await setup(t);
  const writer = await client.openWriter({ scope, clientId: "bounded", maxPending: 2, maxWaiting: 3 });
  const pendings = Array.from({ length: 6 }, (_, i) => writer.submit([append(String(i))]));
  assert.match(await outcome(pendings[5]!), /refused UNSPECIFIED/);
  assert.deepEqual(await outcomes(pendings.slice(0, 5)), [1, 2, 3, 4, 5].map((n) => `committed ${n}`));
  assert.throws(() => writer.submit([]), RangeError);
  assert.throws(() => append("\ud800"), TypeError);
  assert.throws(() => writer.submit([append("x")], { tag: "t" }), TypeError);
  await assert.rejects(client.openWriter({ scope, clientId: "x", maxPending: 0 }), RangeError);
});

test("large writes have messages of their own, and one that is too large is refused", async (t) => {
  const { writer } = await setup(t);
  const large = "x".repeat(1 << 20);
  const pendings = Array.from({ length: 4 }, () => writer.submit([append(large), append(large), append(large)]));
  assert.deepEqual(await outcomes(pendings), [1, 2, 3, 4].map((n) => `committed ${n}`));
  const p = writer.submit(Array.from({ length: 4 }, () => append("y".repeat((1 << 20) + 1))));
  assert.equal(await outcome(p), "refused INVALID_ARGUMENT");
});

test("a tag is used once, and recovered writes are settled", async (t) => {
  const { address, client } = await setup(t);
  const journal = await memoryJournal();
  const writer = await client.openWriter({ scope, clientId: "j", journal });
  const p = writer.submit([append("paid")], { tag: "order-1" });
  await p.settled;
  await assert.rejects(writer.submit([append("again")], { tag: "order-1" }).settled, /in use/);
  await writer.close();
  const next = await client.openWriter({ scope, clientId: "j", journal });
  assert.deepEqual(next.recovered.map((r) => [r.tag, r.sequence]), [["order-1", 1n]]);
  assert.equal((await next.recovered[0]!.settled).sequence, 1n);
  await next.recovered[0]!.acknowledge();
  await assert.rejects(next.submit([append("again")], { tag: "order-1" }).settled, /in use/);
  await next.close();
  const last = await client.openWriter({ scope, clientId: "j", journal });
  assert.deepEqual(last.recovered, []);
  assert.deepEqual(payloads(address), ["paid"]);
});

test("errors name what is wrong", async (t) => {
  const { client } = await setup(t);
  await assert.rejects(client.openWriter({ scope: { organization: "" }, clientId: "x" }), (e) =>
    e instanceof LedgerError && e.code === WriteErrorCode.INVALID_ARGUMENT && e.field === "scope.organization");
});
