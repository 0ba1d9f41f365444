// The state of a stream.

import { ClientStatus } from "@seqledger/client";
import type { ClientEntry } from "@seqledger/gen/ledger_pb";
import type { ClientState } from "@seqledger/gen/types_pb";
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { admin, ledger } from "./api";
import { scopeOf, scopeText, timeOf } from "./format";
import { Facts, Field, Form, Table } from "./parts";

/** Streams finds one stream, or lists those of a scope. */
export function Streams(): JSX.Element {
  const [scope, setScope] = useState("");
  const [clientId, setClientId] = useState("");
  const [state, setState] = useState<ClientState>();
  const [listed, setListed] = useState<ClientEntry[]>();
  const [next, setNext] = useState("");
  const find = async (signal: AbortSignal): Promise<void> => {
    setListed(undefined);
    const request = { scope: scopeOf(scope), clientId, includeReceipts: true };
    setState((await ledger.getClientState(request, { signal })).state);
  };
  const list = async (signal: AbortSignal, pageToken = ""): Promise<void> => {
    setState(undefined);
    const request = { scope: scope === "" ? undefined : scopeOf(scope), pageSize: 50, pageToken };
    const page = await admin.listClients(request, { signal });
    setListed(page.clients);
    setNext(page.nextPageToken);
  };
  return (
    <>
      <h1>Streams</h1>
      <Form action={clientId === "" ? (signal) => list(signal) : find} verb={clientId === "" ? "List" : "Find"}>
        <Field label="Scope" value={scope} onValue={setScope} placeholder="acme/main" />
        <Field label="Client id (empty: list)" value={clientId} onValue={setClientId} />
      </Form>
      {state && <Stream state={state} />}
      {listed && (
        <Table caption={`${listed.length} streams`} head={["scope", "client id", "last", "session", "last seen", "expires"]}
          rows={listed.map(({ scope: s, clientId: id, state: at }) => [
            scopeText(s), <button type="button" class="link" onClick={() => {
              setScope(scopeText(s));
              setClientId(id);
              setListed(undefined);
            }}>{id}</button>,
            String(at?.lastCommittedSequence), String(at?.session), timeOf(at?.lastSeen), timeOf(at?.expiresAt),
          ])} />
      )}
      {listed && next !== "" && (
        <Form action={(signal) => list(signal, next)} verb="Next page">{null}</Form>
      )}
    </>
  );
}

function Stream({ state }: { state: ClientState }): JSX.Element {
  if (state.status === ClientStatus.UNKNOWN) return <p role="status">There is no such stream.</p>;
  return (
    <>
      <Facts of={[
        ["last committed sequence", state.lastCommittedSequence.toString()],
        ["session", state.session === 0n ? "none" : state.session.toString()],
        ["created at index", state.createdIndex.toString()],
        ["last seen", timeOf(state.lastSeen)], ["expires", timeOf(state.expiresAt)],
        ["receipt window", String(state.receiptWindow)], ["last key", state.lastIdempotencyKey || "–"],
      ]} />
      <Table caption={`The ${state.receipts.length} receipts in the window`}
        head={["sequence", "session", "committed", "height", "transaction"]}
        rows={state.receipts.map((r) => [
          r.sequence.toString(), r.session.toString(), timeOf(r.committedAt), r.blockHeight.toString(),
          <a href={`#/transaction/${r.txId}`}>{r.txId}</a>,
        ])} />
    </>
  );
}
