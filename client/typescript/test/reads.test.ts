import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import {
  append, type Block, blockHash, deleteEntity, InvalidProofError, isNotFound, LedgerError, relate, setEntity,
  type Transaction, unrelate, verifyTransaction,
} from "../src/index.js";
import { transactionLeaf } from "../src/proof.js";
import { clientOf, FaultProxy, Ledger, run, startLedger, temporary } from "./support.js";

const scope = { organization: "acme", vault: "main" };
const formats = join(import.meta.dirname, "..", "..", "..", "..", "ledger", "machine", "testdata", "format");
const golden = (name: string): Buffer =>
  Buffer.from(readFileSync(join(formats, `${name}.hex`), "utf8").replace(/\s+/g, ""), "hex");

/** Collects the items of a list. */
async function all<T>(list: AsyncIterable<T>): Promise<T[]> {
  const found: T[] = [];
  for await (const item of list) found.push(item);
  return found;
}

test("what was written is read, in the platform's types", async (t) => {
  const { address } = await startLedger(t);
  const client = clientOf(t, address);
  const writer = await client.openWriter({ scope, clientId: "w" });
  const expiresAt = new Date(Date.now() + 3_600_000);
  const receipt = await writer.write([
    setEntity("a", "1"), setEntity("b", Uint8Array.of(0, 255), { expiresAt }), relate("doc", "owner", "bob"),
  ]);
  const a = await client.getEntity(scope, "a");
  assert.deepEqual([a.value, a.version, a.txId], [Uint8Array.of(49), receipt.versions[0], receipt.txId]);
  const b = await client.getEntity(scope, "b");
  assert.deepEqual([b.value, b.expiresAt?.date], [Uint8Array.of(0, 255), expiresAt]);
  await assert.rejects(client.getEntity(scope, "c"), isNotFound);
  assert.deepEqual((await all(client.listEntities(scope))).map((e) => e.key), ["a", "b"]);
  assert.deepEqual(await all(client.listRelationships(scope, { resource: "doc" })), [
    { resource: "doc", relation: "owner", subject: "bob" },
  ]);
  const transaction = await client.getTransaction(receipt.txId);
  const kinds = transaction.operations.map((o) => o.operation.case);
  assert.deepEqual(kinds, ["setEntity", "setEntity", "createRelationship"]);
  assert.deepEqual(transaction.committedAt, receipt.committedAt);
  const state = await client.getClientState(scope, "w");
  assert.deepEqual([state.lastCommittedSequence, state.session], [1n, receipt.session]);
  const status = JSON.parse(run("status", "--server", address, "--json")) as { ledgerId: string };
  assert.equal((await client.status()).ledgerId, status.ledgerId);
});

test("a large transaction and a large block are read in parts", async (t) => {
  const { address } = await startLedger(t);
  const client = clientOf(t, address);
  const writer = await client.openWriter({ scope, clientId: "w" });
  const operations = Array.from({ length: 7 }, (_, i) => append(String(i).repeat(500_000)));
  const receipt = await writer.write(operations);
  assert.deepEqual((await client.getTransaction(receipt.txId)).operations, operations);
  const block = await client.getBlock(scope, receipt.blockHeight);
  assert.deepEqual(block.transactions[0]!.operations, operations);
  assert.deepEqual(await blockHash(block.header), block.hash);
  const { transaction, header, proof } = await client.getTransactionWithProof(receipt.txId);
  await verifyTransaction(transaction, header, proof);
});

test("a transaction's proof holds, and no other one does", async (t) => {
  const { address } = await startLedger(t);
  const client = clientOf(t, address);
  const writer = await client.openWriter({ scope, clientId: "w" });
  await writer.write([setEntity("v", "1")]);
  const pendings = Array.from({ length: 13 }, (_, i) => writer.submit([
    append(`n ${i}`), setEntity(`k${i}`, "v", { condition: { notExists: true } }),
    deleteEntity("v", { mustExist: true }),
    setEntity("v", "1", { expiresAt: new Date(Date.now() + 1e9) }), relate("a", "b", "c"), unrelate("a", "b", "c"),
    setEntity("v", "2", { condition: { valueEquals: "1" } }),
  ]));
  for (const p of pendings) {
    const { transaction, header, proof } = await client.getTransactionWithProof((await p.settled).txId);
    await verifyTransaction(transaction, header, proof);
    const changes: Partial<Transaction>[] = [
      { clientId: "x" }, { actor: "x" }, { sequence: 99n }, { index: 1n }, { operations: [append("x")] },
      { committedAt: { ...transaction.committedAt!, nanoseconds: 1 } },
      { blockPosition: transaction.blockPosition + 1 },
      { encoding: 2 }, { changed: Uint8Array.of(1) }, { idempotencyKey: "" }, { scope: { organization: "acme" } }, { requestHash: "00" },
    ];
    for (const change of changes) {
      await assert.rejects(verifyTransaction({ ...transaction, ...change }, header, proof), InvalidProofError);
    }
    const longer = { ...proof, path: [...proof.path, new Uint8Array(32)] };
    await assert.rejects(verifyTransaction(transaction, header, longer), InvalidProofError);
  }
});

test("a transaction is encoded as the ledger's own tests hold fixed", async () => {
  const id = golden("tx_id").toString("hex");
  const at = (seconds: bigint, nanos = 0) => ({ $typeName: "google.protobuf.Timestamp" as const, seconds, nanos });
  const second = setEntity("k2", "", { condition: { version: 128n } });
  const ends = 1n << 60n;
  if (second.operation.case === "setEntity") {
    second.operation.value.expiresAt = at(ends / 1_000_000_000n, Number(ends % 1_000_000_000n));
  }
  const transaction: Transaction = {
    txId: `${id.slice(0, 8)}-${id.slice(8, 12)}-${id.slice(12, 16)}-${id.slice(16, 20)}-${id.slice(20)}`,
    scope: { organization: "acme", vault: "vault-1" }, clientId: "client 7", streamCreatedIndex: 299n, session: 300n,
    sequence: 5n, idempotencyKey: "deadbeef-0000-0000-0000-000000000001",
    requestHash: golden("request_hash").toString("hex"), actor: "user:42",
    committedAt: { date: new Date(1_000_000_000), nanoseconds: 0 }, index: (1n << 40n) + 7n, blockHeight: 1000n,
    blockPosition: 0, encoding: 1, changed: Uint8Array.of(0x55), keyed: undefined,
    operations: [
      setEntity("k", "v", { condition: { notExists: true } }), second, deleteEntity("k3", { mustExist: true }),
      deleteEntity("k4", { valueEquals: "w" }), relate("doc", "owner", "bob"), unrelate("doc", "viewer", "eve"),
      append("payload"),
    ],
  };
  const encoded = await transactionLeaf(transaction);
  assert.equal(Buffer.from(encoded).toString("hex"), golden("leaf").toString("hex"));
  const leaf = createHash("sha256").update(Uint8Array.of(0)).update(encoded).digest();
  assert.deepEqual(leaf, golden("transaction_hash"));
  const previousHash = new Uint8Array(32);
  previousHash[0] = 1;
  previousHash[31] = 2;
  const header = {
    scope: transaction.scope, height: 1000n, previousHash, txRoot: leaf, txCount: 1,
    committedAt: transaction.committedAt,
  };
  assert.deepEqual(Buffer.from(await blockHash(header)), golden("block_header_hash"));
});

test("a watch goes on at the next height after a restart of the server", async (t) => {
  let ledger = await Ledger.start(temporary(t));
  t.after(() => ledger.kill());
  const client = clientOf(t, ledger.address);
  const writer = await client.openWriter({ scope, clientId: "w" });
  for (let i = 0; i < 3; i++) await writer.write([append(String(i))]);
  const blocks: Block[] = [];
  for await (const block of client.watch(scope, { fromHeight: 2n })) {
    blocks.push(block);
    if (blocks.length === 2) {
      ledger = await ledger.restart();
      await writer.write([append("after")]);
    }
    if (blocks.length === 3) break;
  }
  assert.deepEqual(blocks.map((b) => b.header.height), [2n, 3n, 4n]);
  const abort = new AbortController();
  const quiet = client.watch(scope, { fromHeight: 5n, signal: abort.signal }).next();
  abort.abort(new Error("enough"));
  await assert.rejects(quiet, /enough/);
});

test("a token is asked for again, and a wrong one is told", async (t) => {
  const { address } = await startLedger(t);
  const proxy = await FaultProxy.start(t, address);
  let tokens = 0;
  const client = clientOf(t, proxy.address, { token: () => `token-${++tokens}` });
  proxy.fault = () => (proxy.authorization.at(-1) === "Bearer token-1" ? "unauthenticated" : "none");
  assert.match((await client.status()).ledgerId, /^[0-9a-f]{16}$/);
  proxy.fault = () => "unauthenticated";
  await assert.rejects(client.status(), (e) => e instanceof LedgerError && e.wire && !e.worthRetrying);
  assert.throws(() => clientOf(t, "ledger.example", { token: () => "secret" }), /clear text/);
});
