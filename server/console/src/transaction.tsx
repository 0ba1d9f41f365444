// One transaction, and its proof, which this page verifies itself.

import {
  blockHash, type BlockHeader, type MerkleProof, proofSteps, type ProofStep, type Transaction as Tx, verifyTransaction,
} from "@seqledger/client";
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { ledger, messageOf, once } from "./api";
import { hex, numberOf, operationText, scopeOf, scopeText, time } from "./format";
import { Facts, Field, Form, Problem, Table } from "./parts";

interface Found {
  transaction: Tx;
  header: BlockHeader;
  proof: MerkleProof;
  hash: Uint8Array;
  leaf: Uint8Array;
  steps: ProofStep[];
  wrong: string; // what is wrong with the proof, or empty
}

async function load(txId: string, signal: AbortSignal): Promise<Found> {
  const answer = await once(signal, (client, options) => client.getTransactionWithProof(txId, options));
  const { transaction, header, proof } = answer;
  const empty = new Uint8Array(0);
  if (globalThis.crypto?.subtle === undefined) {
    const wrong = "this page has no WebCrypto, which browsers have on https and localhost: nothing was checked";
    return { ...answer, hash: empty, leaf: empty, steps: [], wrong };
  }
  try {
    await verifyTransaction(transaction, header, proof);
    return { ...answer, hash: await blockHash(header), ...(await proofSteps(transaction, proof)), wrong: "" };
  } catch (e) {
    return { ...answer, hash: empty, leaf: empty, steps: [], wrong: messageOf(e) };
  }
}

/** Transaction finds one by its id, or by a client id and sequence. */
export function Transaction({ id }: { id: string }): JSX.Element {
  const [txId, setTxId] = useState(id);
  const [scope, setScope] = useState("");
  const [clientId, setClientId] = useState("");
  const [sequence, setSequence] = useState("");
  const [found, setFound] = useState<Found>();
  const [error, setError] = useState<unknown>();
  useEffect(() => {
    if (id === "") return;
    const ended = new AbortController();
    setTxId(id);
    setError(undefined);
    load(id, ended.signal).then(setFound, (e) => ended.signal.aborted || setError(e));
    return () => ended.abort();
  }, [id]);
  const byId = async (signal: AbortSignal): Promise<void> => {
    setFound(undefined);
    setFound(await load(txId.trim(), signal));
  };
  const bySequence = async (signal: AbortSignal): Promise<void> => {
    const wanted = numberOf("the sequence", sequence);
    const request = { scope: scopeOf(scope), clientId, includeReceipts: true, receiptsBelow: wanted + 1n };
    const { state } = await ledger.getClientState(request, { signal });
    const receipt = state?.receipts.find((r) => r.sequence === wanted);
    if (receipt === undefined) {
      throw new Error(`sequence ${wanted} is not among the receipts that the ledger keeps of this stream: ` +
        `its last is ${state?.lastCommittedSequence}, and it keeps ${state?.receiptWindow}`);
    }
    location.hash = `#/transaction/${receipt.txId}`;
  };
  return (
    <>
      <h1>Transaction</h1>
      <Form action={byId} verb="Find">
        <Field label="Transaction id" value={txId} onValue={setTxId} wide />
      </Form>
      <details>
        <summary>Find by client id and sequence</summary>
        <Form action={bySequence} verb="Find">
          <Field label="Scope" value={scope} onValue={setScope} placeholder="acme/main" />
          <Field label="Client id" value={clientId} onValue={setClientId} />
          <Field label="Sequence" value={sequence} onValue={setSequence} />
        </Form>
      </details>
      <Problem error={error} />
      {found && <Details found={found} />}
    </>
  );
}

function Details({ found }: { found: Found }): JSX.Element {
  const t = found.transaction;
  return (
    <>
      <Facts of={[
        ["scope", scopeText(t.scope)], ["client id", t.clientId], ["sequence", t.sequence.toString()],
        ["session", t.session.toString()], ["index", t.index.toString()], ["committed", time(t.committedAt)],
        ["actor", t.actor], ["key", t.idempotencyKey || "–"], ["request hash", t.requestHash],
        ["block", `${t.blockHeight}, position ${t.blockPosition}`],
      ]} />
      <Table caption={`Operations: ${t.operations.length}`} head={["number", "operation"]}
        rows={t.operations.map((o, i) => [String(i), <code>{operationText(o)}</code>])} />
      <Proof found={found} />
    </>
  );
}

/** Proof shows the path from the transaction to the hash of its block, and compares that hash with a known one. */
function Proof({ found }: { found: Found }): JSX.Element {
  const [known, setKnown] = useState("");
  const { hash, header, leaf, steps, wrong } = found;
  if (wrong !== "") return <p class="problem" role="alert">The proof does not hold: {wrong}</p>;
  const pasted = known.trim().toLowerCase();
  const same = pasted === hex(hash);
  return (
    <section aria-label="Proof">
      <h2>Proof</h2>
      <p class="good" role="status">This page has computed the hashes below: the transaction is in the block.</p>
      <ol class="proof">
        <li><b>transaction</b><code>{hex(leaf)}</code></li>
        {steps.map((s, i) => (
          <li key={i}>
            <b>{s.siblingIsLeft ? "with, on its left," : "with, on its right,"}</b><code>{hex(s.sibling)}</code>
            <b>makes</b><code>{hex(s.node)}</code>
          </li>
        ))}
        <li><b>which is the tx_root of block {header.height.toString()}</b><code>{hex(header.txRoot)}</code></li>
        <li><b>whose header has the hash</b><code>{hex(hash)}</code></li>
      </ol>
      <Field label="Block hash that you know from elsewhere" value={known} onValue={setKnown} wide />
      {pasted !== "" && (
        <p class={same ? "good" : "problem"} role="status">
          {same ? "It is the hash of this block: the transaction is in the history that you know." : "It is another hash."}
        </p>
      )}
    </section>
  );
}
