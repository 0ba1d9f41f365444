// Reservations of keys that need a decision, and settling them.

import { type IdempotencyRecord, RecordOutcome, RecordState } from "@seqledger/gen/idempotency_pb";
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { records } from "./api";
import { hex, scopeOf, timeOf } from "./format";
import { Field, Form, Table } from "./parts";

/** Reservations lists the records with an open outcome, and settles one. */
export function Reservations(): JSX.Element {
  const [scope, setScope] = useState("");
  const [found, setFound] = useState<IdempotencyRecord[]>();
  const [chosen, setChosen] = useState<IdempotencyRecord>();
  const list = async (signal: AbortSignal): Promise<void> => {
    const all: IdempotencyRecord[] = [];
    for (const state of [RecordState.INDETERMINATE, RecordState.PENDING]) {
      const request = { scope: scopeOf(scope), state, everyPrincipal: true, pageSize: 200 };
      all.push(...(await records.listRecords(request, { signal })).records);
    }
    setFound(all);
  };
  // What is settled is in the scope that is shown.
  const rename = (to: string): void => {
    setScope(to);
    setFound(undefined);
    setChosen(undefined);
  };
  return (
    <>
      <h1>Reservations</h1>
      <p>Requests with a key whose outcome is open. It needs an admin's credential to see those of all principals.</p>
      <Form action={list} verb="List">
        <Field label="Scope" value={scope} onValue={rename} placeholder="acme/main" />
      </Form>
      {found && (
        <Table caption={`${found.length} records, the first 200 of each state`}
          head={["state", "namespace", "principal", "hash of the key", "attempts", "since", "lease ends", "settle"]}
          rows={found.map((r) => [
            RecordState[r.state], r.namespace || "–", r.principal || "–", <code>{hex(r.keyHash).slice(0, 16)}…</code>,
            r.attempts.toString(), timeOf(r.createdAt), timeOf(r.leaseExpiresAt),
            <button type="button" class="link" onClick={() => setChosen(r)}>choose</button>,
          ])} />
      )}
      <Settle key={nameOf(chosen)} scope={scope} chosen={chosen} />
    </>
  );
}

/** nameOf tells records apart: those of several principals may have the same key. */
const nameOf = (r: IdempotencyRecord | undefined): string =>
  r === undefined ? "" : JSON.stringify([r.namespace, r.principal, hex(r.keyHash)]);

/** Settle asks for the key itself, because the ledger has only its hash. */
function Settle({ scope, chosen }: { scope: string; chosen: IdempotencyRecord | undefined }): JSX.Element {
  const [namespace, setNamespace] = useState(chosen?.namespace ?? "");
  const [principal, setPrincipal] = useState(chosen?.principal ?? "");
  const [key, setKey] = useState("");
  const [response, setResponse] = useState("");
  const [done, setDone] = useState(false);
  const [said, setSaid] = useState("");
  const settle = async (signal: AbortSignal): Promise<void> => {
    setSaid("");
    const { outcome } = await records.resolveRecord({
      record: { scope: scopeOf(scope), namespace, principal, key },
      state: done ? RecordState.COMMITTED : RecordState.REJECTED, response: new TextEncoder().encode(response),
    }, { signal });
    setSaid(RecordOutcome[outcome] ?? String(outcome));
  };
  return (
    <section aria-label="Settle an outcome">
      <h2>Settle an unknown outcome</h2>
      <p>Find out first whether the work was done. What you say here is what every repeat gets from then on.</p>
      <Form action={settle} verb="Settle">
        <Field label="Namespace" value={namespace} onValue={setNamespace} />
        <Field label="Principal" value={principal} onValue={setPrincipal} />
        <Field label="Key" value={key} onValue={setKey} />
        <Field label="Response" value={response} onValue={setResponse} wide />
        <label class="check">
          <input type="checkbox" checked={done} onChange={(e) => setDone(e.currentTarget.checked)} />
          <span>The work was done</span>
        </label>
      </Form>
      {said !== "" && <p role="status">{said}</p>}
    </section>
  );
}
