// A worker for Node that makes each payment of a file once, however often it is stopped and run
// again. A line of the file is the id of a payment and its amount.
//
//     node dist/examples/worker.js http://127.0.0.1:7450 payments.txt
//
// Beside the file it keeps payments.txt.journal, with what is under way, and payments.txt.done, its
// books: it notes an outcome there before the journal forgets the write.

import { existsSync, readFileSync } from "node:fs";
import { open } from "node:fs/promises";
import { createClient, isConditionFailed, type Pending, setEntity } from "../src/index.js"; // "@seqledger/client"
import { fileJournal } from "../src/node/index.js"; // "@seqledger/client/node"

const [baseUrl = "http://127.0.0.1:7450", file = "payments.txt"] = process.argv.slice(2);
const noted = existsSync(`${file}.done`) ? readFileSync(`${file}.done`, "utf8") : "";
const done = new Set(noted.split("\n").map((line) => line.split(" ")[0]!));
const books = await open(`${file}.done`, "a");
await using client = createClient({ baseUrl });
await using journal = await fileJournal(`${file}.journal`, { mustExist: noted !== "" });
await using writer = await client.openWriter({
  scope: { organization: "acme", vault: "main" }, clientId: "worker-1", journal,
});

/** Waits for the outcome of a payment, notes it durably, and lets the journal forget it. */
async function settle(p: Pending): Promise<void> {
  let outcome: string;
  try {
    outcome = `paid ${(await p.settled).txId}`;
  } catch (e) {
    if (!isConditionFailed(e)) throw e; // run it again: it cannot pay twice
    outcome = "refused: there is a payment with this id already";
    await writer.resume();
  }
  await books.write(`${p.tag} ${outcome}\n`);
  await books.datasync();
  done.add(p.tag);
  await p.acknowledge();
  console.log(`${p.tag} ${outcome}`);
}

for (const p of writer.recovered) await settle(p); // of an interrupted run
for (const line of readFileSync(file, "utf8").split("\n")) {
  const [id = "", amount = ""] = line.trim().split(/\s+/);
  if (id === "" || done.has(id)) continue;
  await settle(writer.submit([setEntity(`payment/${id}`, amount, { condition: { notExists: true } })], { tag: id }));
}
await books.close();
