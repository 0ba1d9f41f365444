import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { InvalidProofError, verifyReceipt } from "../src/index.js";

const file = readFileSync(join(import.meta.dirname, "..", "..", "..", "..", "ledger", "receipt", "testdata",
  "receipt.tlog-proof"), "utf8");
const log = "log.example/0123456789abcdef+523fe430+AQOhB7/zzhC+HXDdGOdLwJln5NYwm6UNXx3chmQSVTG4";

test("a receipt shows what the ledger's own tests hold fixed", async () => {
  const shown = await verifyReceipt(file, { log });
  assert.equal(shown.clientId, "till-7");
  assert.equal(shown.sequence, 5n);
  assert.deepEqual(shown.scope, { organization: "acme", vault: "main" });
  assert.deepEqual(shown.changed, [true, false]);
  assert.equal(shown.blockHeight, 7n);
  assert.equal(shown.size, 5n);
  assert.equal(shown.ledgerTime.date.getTime(), 1_000_000_000_000);
  assert.equal(shown.txId, "01234567-89ab-8cde-bc00-00000000012c");
  const payload = createHash("sha256").update("\x05\x05hello\x02\x06absent\x00").digest();
  assert.deepEqual(Buffer.from(shown.payloadHash), payload);
});

test("no character of a receipt can be another one", async () => {
  const want = await verifyReceipt(file, { log });
  for (let i = 0; i < file.length; i++) {
    const changed = file.slice(0, i) + (file[i] === "B" ? "C" : "B") + file.slice(i + 1);
    await verifyReceipt(changed, { log }).then(
      // Some bits in the last character of a signature mean nothing.
      (shown) => assert.deepEqual(shown, want, `character ${i}`),
      (e: unknown) => assert.ok(e instanceof InvalidProofError, `character ${i}: ${String(e)}`));
  }
  await assert.rejects(verifyReceipt(file, { log, witnesses: [log], quorum: 2 }), InvalidProofError);
  await assert.rejects(verifyReceipt(file, { log: log.replace("example", "elsewhere") }), InvalidProofError);
});
