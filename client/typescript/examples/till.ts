// A till in a page, till.html: each sale is in the ledger once, although the network may fail and the
// page may be closed or reloaded in the middle.
//
//     https://shop.example/till.html?ledger=https://ledger.example
//
// A sale is in the browser's journal before it is sent. What this till does with an outcome is to print
// it; the journal forgets a sale once that is done. After a crash a receipt may be printed twice, and
// never is a thing sold twice.

import { append, createClient, indexedDbJournal, type Pending } from "../src/index.js"; // "@seqledger/client"

const status = document.querySelector("p")!;
const form = document.querySelector("form")!;
const receipts = document.querySelector("ol")!;

/** Prints a line for a sale, and its outcome when there is one. */
async function print(sale: Pending): Promise<void> {
  const line = receipts.appendChild(document.createElement("li"));
  line.textContent = `${sale.tag}: on its way`;
  try {
    const { sequence } = await sale.settled;
    line.textContent = `${sale.tag}: sold, number ${sequence}`;
    await sale.acknowledge();
  } catch (e) {
    line.textContent = `${sale.tag}: ${String(e)}`;
  }
}

try {
  // Another tab that has the till open keeps this one waiting.
  const journal = await indexedDbJournal("till", { wait: true });
  const client = createClient({ baseUrl: new URL(location.href).searchParams.get("ledger") ?? location.origin });
  const scope = { organization: "acme", vault: "main" };
  const writer = await client.openWriter({ scope, clientId: "till", journal });
  void writer.done.then((reason) => (status.textContent = `Closed: ${reason.message}`));
  for (const sale of writer.recovered) void print(sale); // of an interrupted run
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const article = String(new FormData(form).get("article"));
    form.reset();
    const tag = `${article} ${crypto.randomUUID().slice(0, 8)}`;
    const sale = writer.submit([append(article)], { tag });
    // After a refusal, which is printed, the next customer is served: no sale depends on another one.
    void print(sale).then(() => writer.resume()).catch(() => {}); // a Writer that has ended says so above
  });
  form.querySelector("button")!.disabled = false;
  status.textContent = journal.persistent ? "Open" : "Open. The browser may delete the journal when its disk is full.";
} catch (e) {
  status.textContent = `Not open: ${String(e)}`;
}
