// A service worker that sends what a page has left in its journal: the page may be closed before its
// writes are answered. The page registers it, and asks for a sync whenever it writes:
//
//     const worker = await navigator.serviceWorker.register("/serviceworker.js?ledger=https://ledger.example");
//     await worker.sync.register("till");
//
// Browsers with Background Sync (Chromium's) start it when there is a network. In the others the
// writes wait for the next visit.

import { createClient, indexedDbJournal } from "../src/index.js"; // "@seqledger/client"

interface SyncEvent {
  tag: string;
  waitUntil(done: Promise<unknown>): void;
}
declare const self: {
  location: { href: string };
  addEventListener(type: "sync", listener: (event: SyncEvent) => void): void;
};

/** Brings every write in the journal to its outcome. A page that is open has the journal, and does that itself. */
async function flush(): Promise<void> {
  const ledger = new URL(self.location.href).searchParams.get("ledger")!;
  await using journal = await indexedDbJournal("till", { mustExist: true, wait: true });
  await using client = createClient({ baseUrl: ledger });
  await using writer = await client.openWriter({
    scope: { organization: "acme", vault: "main" }, clientId: "till", journal,
  });
  // Not acknowledged: the journal keeps the outcomes until the page has them in its books.
  await Promise.allSettled(writer.recovered.map((p) => p.settled));
}

self.addEventListener("sync", (event) => {
  if (event.tag === "till") event.waitUntil(flush());
});
