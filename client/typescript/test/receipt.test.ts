import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { append, deleteEntity, InvalidProofError, verifyReceipt } from "../src/index.js";

interface Vector {
  name: string;
  file: string;
  policy: string;
  refused?: string; // why the ledger's own verifier refuses it
  clientId?: string;
  cosigners?: string[];
}

// The tests of ledger/receipt make them, and hold them fixed.
const data = join(import.meta.dirname, "..", "..", "..", "..", "ledger", "receipt", "testdata");
const vectors = JSON.parse(readFileSync(join(data, "vectors.json"), "utf8")) as Vector[];
const { file, policy } = vectors[0]!;
const key = policy.split("\n")[0]!.replace("log ", "");
const operations = [append("hello"), deleteEntity("absent")];

test("a receipt shows what the ledger's own tests hold fixed", async () => {
  const golden = readFileSync(join(data, "receipt.tlog-proof"));
  const shown = await verifyReceipt(golden, { key, payload: operations });
  const payloadHash = shown.payloadHash;
  assert.deepEqual(shown, {
    txId: "01234567-89ab-8cde-bc00-00000000012c", scope: { organization: "acme", vault: "main" }, clientId: "till-7",
    session: 3n, sequence: 5n, actor: "client:till-7", payloadHash, changed: [true, false], index: 300n,
    ledgerTime: { date: new Date(1_000_000_000_000), nanoseconds: 0 }, blockHeight: 7n,
    origin: "log.example/0123456789abcdef", size: 5n, cosigners: [],
  });
  for (const payload of [operations.slice(1), new TextEncoder().encode("hello")]) {
    await assert.rejects(verifyReceipt(golden, { key, payload }), /other operations/);
  }
  await assert.rejects(verifyReceipt(`${file}${"x".repeat(64 << 10)}`, { key }), /no receipt/);
  await assert.rejects(verifyReceipt(golden, {}), TypeError);
  await assert.rejects(verifyReceipt(golden, { key, policy }), TypeError);
});

test("what the ledger's own verifier refuses is refused, and nothing else", async (t) => {
  assert.ok(vectors.some((v) => v.refused) && vectors.some((v) => !v.refused));
  for (const v of vectors) {
    await t.test(v.name, async () => {
      const verified = verifyReceipt(v.file, { policy: v.policy });
      if (v.refused !== undefined) return assert.rejects(verified, InvalidProofError, v.refused);
      const { clientId, cosigners } = await verified;
      assert.equal(clientId, v.clientId);
      const shown = cosigners.map((c) => `${c.name} ${c.time.getTime() / 1000}`);
      assert.deepEqual(shown, v.cosigners ?? []);
    });
  }
});

test("no byte of a receipt can be another one", async () => {
  const cosigned = vectors.find((v) => v.cosigners?.length === 2)!;
  const bytes = new TextEncoder().encode(cosigned.file);
  for (let i = 0; i < bytes.length; i++) {
    for (const flip of [1, 2, 0x20, 0x80]) {
      const changed = bytes.slice();
      changed[i]! ^= flip;
      const verified = verifyReceipt(changed, { policy: cosigned.policy });
      await assert.rejects(verified, InvalidProofError, `byte ${i} ^ ${flip}`);
    }
    const cut = verifyReceipt(bytes.slice(0, i), { policy: cosigned.policy });
    await assert.rejects(cut, InvalidProofError, `the first ${i} bytes`);
  }
});

test("where WebCrypto lacks Ed25519 the error says so, and is no refusal", async (t) => {
  t.mock.method(crypto.subtle, "importKey", () => Promise.reject(new DOMException("no", "NotSupportedError")));
  await assert.rejects(verifyReceipt(file, { policy }), (e: Error) =>
    !(e instanceof InvalidProofError) && e.message.includes("no Ed25519"));
});
