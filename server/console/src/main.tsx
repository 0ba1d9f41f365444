// The console of a seqledger server.

import { render, type JSX } from "preact";
import { useEffect, useErrorBoundary, useState } from "preact/hooks";
import { admin, key } from "./api";
import { Blocks, Entities, Follow } from "./blocks";
import { Overview } from "./overview";
import { Field, Form, Problem } from "./parts";
import { placeOf } from "./place";
import { Reservations } from "./records";
import { Streams } from "./streams";
import "./style.css";
import { Transaction } from "./transaction";
import { TryIt } from "./tryit";
import { Verify } from "./verify";

const pages: [path: string, name: string, page: (argument: string) => JSX.Element][] = [
  ["", "Overview", () => <Overview />],
  ["streams", "Streams", () => <Streams />],
  ["transaction", "Transaction", (id) => <Transaction id={id} />],
  ["blocks", "Blocks", () => <Blocks />],
  ["entities", "Entities", () => <Entities />],
  ["follow", "Follow", () => <Follow />],
  ["reservations", "Reservations", () => <Reservations />],
  ["verify", "Verify a receipt", () => <Verify />],
  ["try", "Try it", () => <TryIt />],
];

function Console(): JSX.Element {
  const [place, setPlace] = useState(placeOf(location.hash));
  const [login, setLogin] = useState(0); // another key redraws the page
  useEffect(() => {
    const moved = (): void => setPlace(placeOf(location.hash));
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  const page = pages.find(([path]) => path === place.path);
  useEffect(() => {
    document.title = `${page?.[1] ?? "No such page"} – seqledger`;
  }, [page]);
  const problem = page === undefined ? `There is no page ${JSON.stringify(place.path)}.` : place.problem;
  return (
    <>
      <a class="skip" href="#page" onClick={(e) => {
        e.preventDefault();
        document.getElementById("page")?.focus();
      }}>To the page</a>
      <header>
        <strong>seqledger</strong>
        <nav aria-label="Pages">
          {pages.map(([p, name]) => (
            <a key={p} href={`#/${p}`} aria-current={p === page?.[0] ? "page" : undefined}>{name}</a>
          ))}
        </nav>
        <Key onChange={() => setLogin(login + 1)} />
      </header>
      <main id="page" tabIndex={-1} key={`${place.path} ${login}`}>
        {problem === undefined ? null : <p class="problem" role="alert">{problem}</p>}
        {page && <Guarded key={place.argument}>{page[2](place.argument)}</Guarded>}
      </main>
    </>
  );
}

/** Guarded shows why a page cannot be shown, in place of the page: other pages still can. */
function Guarded({ children }: { children: JSX.Element }): JSX.Element {
  const [error] = useErrorBoundary();
  return error === undefined ? children : <Problem error={error} />;
}

/** Key lets the user enter an API key, which is kept for this tab. */
function Key({ onChange }: { onChange: () => void }): JSX.Element {
  const [value, setValue] = useState("");
  const has = key.get() !== "";
  if (has) {
    return (
      <Form action={async () => {
        key.forget();
        onChange();
      }} verb="Forget the key">{null}</Form>
    );
  }
  return (
    <Form action={async (signal) => {
      const typed = value.trim();
      if (/[^!-~]/.test(typed)) throw new Error("an API key has visible ASCII characters alone");
      key.set(typed);
      try {
        await admin.getStatus({}, { signal });
      } catch (e) {
        key.forget();
        throw e;
      }
      onChange();
    }} verb="Use">
      <Field label="API key" type="password" value={value} onValue={setValue} />
    </Form>
  );
}

const root = document.getElementById("console")!;
root.replaceChildren(); // the text that is shown until this program runs
render(<Console />, root);
