// A Writer in React 19: a component has it while it is mounted. React, in its strict mode, mounts a
// component twice; the second Writer waits until the first one has let the journal go.

import { StrictMode, useEffect, useState } from "react";
import { createRoot } from "react-dom/client";
import { append, createClient, indexedDbJournal, type Pending, type Writer } from "../src/index.js"; // the package

/** Orders sends each order once, and shows what became of it, after a reload too. */
function Orders({ ledger }: { ledger: string }) {
  const [writer, setWriter] = useState<Writer>();
  const [outcomes, setOutcomes] = useState<Record<string, string>>({});
  const follow = (p: Pending): Promise<void> => {
    const show = (outcome: string): void => setOutcomes((all) => ({ ...all, [p.tag]: outcome }));
    show("on its way");
    return p.settled.then(() => (show("ordered"), p.acknowledge()), (e: unknown) => show(String(e)));
  };
  useEffect(() => {
    const unmounted = new AbortController();
    const run = async (signal: AbortSignal): Promise<void> => {
      await using journal = await indexedDbJournal("orders", { wait: true, signal });
      await using client = createClient({ baseUrl: ledger }); // its end ends the Writer; the journal has the rest
      const opened = await client.openWriter({ scope: { organization: "shop" }, clientId: "orders", journal, signal });
      for (const p of opened.recovered) void follow(p);
      setWriter(opened);
      await new Promise((stop) => signal.aborted ? stop(0) : signal.addEventListener("abort", stop));
    };
    run(unmounted.signal).catch((e: unknown) => unmounted.signal.aborted || setOutcomes({ orders: String(e) }));
    return () => unmounted.abort();
  }, [ledger]);
  const order = async (form: FormData): Promise<void> => {
    const p = writer!.submit([append(String(form.get("article")))], { tag: String(form.get("article")) });
    await follow(p).then(() => writer!.resume());
  };
  return (
    <form action={(form) => void order(form)}>
      <label>Article <input name="article" required /></label> <button disabled={!writer}>Order</button>
      <ul>{Object.entries(outcomes).map(([tag, outcome]) => <li key={tag}>{tag}: {outcome}</li>)}</ul>
    </form>
  );
}

const ledger = new URL(location.href).searchParams.get("ledger") ?? location.origin;
createRoot(document.getElementById("orders")!).render(<StrictMode><Orders ledger={ledger} /></StrictMode>);
