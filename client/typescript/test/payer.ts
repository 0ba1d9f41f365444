// A program that makes payments, each once, however often it is killed. gopayer is its Go counterpart.
//
//     node payer.js ADDRESS JOURNAL DONE COUNT

import { existsSync, readFileSync } from "node:fs";
import { open } from "node:fs/promises";
import { append, createClient, type Pending } from "../src/index.js";
import { fileJournal } from "../src/node/index.js";

// The number of payments in flight at once.
const window = 8;

const [address, journalPath, donePath, count] = process.argv.slice(2) as [string, string, string, string];
const done = new Set(existsSync(donePath) ? readFileSync(donePath, "utf8").split("\n") : []);
const notes = await open(donePath, "a", 0o600);
await using client = createClient({ baseUrl: `http://${address}` });
await using journal = await fileJournal(journalPath);
await using writer = await client.openWriter({
  scope: { organization: "acme", vault: "main" }, clientId: "till-1", journal,
});

async function settle(all: readonly Pending[]): Promise<void> {
  for (const p of all) {
    await p.settled;
    await notes.write(`${p.tag}\n`);
    await notes.datasync();
    done.add(p.tag);
    await p.acknowledge();
  }
}

await settle(writer.recovered);
let batch: Pending[] = [];
for (let i = 0; i < Number(count); i++) {
  const tag = `pay-${i}`;
  if (done.has(tag)) continue;
  batch.push(writer.submit([append(tag)], { tag }));
  if (batch.length === window) {
    await settle(batch);
    batch = [];
  }
}
await settle(batch);
await notes.close();
