// The console of a seqledger server.

import { render, type JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { admin, key } from "./api";
import { Blocks, Entities, Follow } from "./blocks";
import { Overview } from "./overview";
import { Field, Form } from "./parts";
import { Reservations } from "./records";
import { Streams } from "./streams";
import "./style.css";
import { Transaction } from "./transaction";
import { TryIt } from "./tryit";

const pages: [path: string, name: string, page: (argument: string) => JSX.Element][] = [
  ["", "Overview", () => <Overview />],
  ["streams", "Streams", () => <Streams />],
  ["transaction", "Transaction", (id) => <Transaction id={id} />],
  ["blocks", "Blocks", () => <Blocks />],
  ["entities", "Entities", () => <Entities />],
  ["follow", "Follow", () => <Follow />],
  ["reservations", "Reservations", () => <Reservations />],
  ["try", "Try it", () => <TryIt />],
];

const place = (): string[] => location.hash.replace(/^#\//, "").replace(/^#/, "").split("/");

function Console(): JSX.Element {
  const [[path = "", argument = ""], setPlace] = useState(place());
  const [login, setLogin] = useState(0); // another key draws the page anew
  useEffect(() => {
    const moved = (): void => setPlace(place());
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  const page = pages.find(([p]) => p === path) ?? pages[0]!;
  useEffect(() => {
    document.title = `${page[1]} – seqledger`;
  }, [page]);
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
            <a key={p} href={`#/${p}`} aria-current={p === page[0] ? "page" : undefined}>{name}</a>
          ))}
        </nav>
        <Key onChange={() => setLogin(login + 1)} />
      </header>
      <main id="page" tabIndex={-1} key={`${page[0]} ${login}`}>{page[2](decodeURIComponent(argument))}</main>
    </>
  );
}

/** Key is where a person gives an API key, which is kept for this tab. */
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
      key.set(value.trim());
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
root.replaceChildren(); // what is said as long as this program does not run
render(<Console />, root);
