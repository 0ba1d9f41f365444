import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { setEntity } from "../src/index.js";
import { clientOf, startLedger, temporary } from "./support.js";

const scope = { organization: "acme", vault: "main" };

test("the worker pays once for each id, and notes what was refused", async (t) => {
  const { address } = await startLedger(t);
  const client = clientOf(t, address);
  const writer = await client.openWriter({ scope, clientId: "other" });
  await writer.write([setEntity("payment/b", "7")]);
  const file = join(temporary(t), "payments.txt");
  writeFileSync(file, "a 100\nb 200\nc 300\n");
  const worker = join(import.meta.dirname, "..", "examples", "worker.js");
  for (let run = 0; run < 2; run++) execFileSync(process.execPath, [worker, `http://${address}`, file]);
  const lines = readFileSync(`${file}.done`, "utf8").trim().split("\n");
  assert.deepEqual(lines.map((line) => line.split(" ").slice(0, 2).join(" ")), ["a paid", "b refused:", "c paid"]);
  const values: string[] = [];
  for await (const e of client.listEntities(scope)) values.push(`${e.key} ${new TextDecoder().decode(e.value)}`);
  assert.deepEqual(values, ["payment/a 100", "payment/b 7", "payment/c 300"]);
});
