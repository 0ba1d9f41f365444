// Verifies a receipt in this page. Nothing is sent.

import { InvalidProofError, type VerifiedReceipt, verifyReceipt } from "@seqledger/client";
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { hex, scopeText, time } from "./format";
import { Facts, Form } from "./parts";

const maxReceipt = 64 << 10;

/** Verify takes a receipt, whom to believe, and what was written. */
export function Verify(): JSX.Element {
  const [receipt, setReceipt] = useState("");
  const [believed, setBelieved] = useState("");
  const [payload, setPayload] = useState<File>();
  const [shown, setShown] = useState<{ verified: VerifiedReceipt; of: unknown[] }>();
  const inputs = [receipt, believed, payload];
  const verify = async (signal: AbortSignal): Promise<void> => {
    const by = /\s/.test(believed.trim()) ? { policy: believed } : { key: believed.trim() };
    const written = payload && { payload: new Uint8Array(await payload.arrayBuffer()) };
    const verified = await verifyReceipt(receipt, { ...by, ...written }).catch((e: unknown) => {
      throw e instanceof InvalidProofError ? new Error(`Do not rely on it: ${e.message}`) : e;
    });
    if (!signal.aborted) setShown({ verified, of: inputs });
  };
  // What was verified is shown for as long as the inputs are the same.
  const current = shown?.of.every((input, i) => input === inputs[i]) === true;
  return (
    <>
      <h1>Verify a receipt</h1>
      <p>
        This page hashes all of the receipt again, up to signatures that you believe. Nothing is sent to the server.
      </p>
      <Form action={verify} verb="Verify">
        <Text label="Receipt" value={receipt} onValue={setReceipt} />
        <Text label="Policy, or public key of the ledger" value={believed} onValue={setBelieved} />
        <label class="wide">
          <span>What was appended, if it is to be compared</span>
          <input type="file" onChange={(e) => setPayload(e.currentTarget.files?.[0])} />
        </label>
      </Form>
      {shown && current && <Shown of={shown.verified} compared={payload !== undefined} />}
    </>
  );
}

/** Text is pasted, or a file that is dropped. */
function Text(
  { label, value, onValue }: { label: string; value: string; onValue: (value: string) => void },
): JSX.Element {
  const drop = async (e: DragEvent): Promise<void> => {
    const file = e.dataTransfer?.files[0];
    if (file === undefined) return;
    e.preventDefault();
    onValue(file.size > maxReceipt ? `${file.name} is too long` : await file.text());
  };
  return (
    <label class="wide">
      <span>{label}; paste it, or drop a file</span>
      <textarea rows={6} value={value} spellcheck={false} aria-label={label}
        onInput={(e) => onValue(e.currentTarget.value)}
        onDragOver={(e) => e.preventDefault()} onDrop={(e) => void drop(e)} />
    </label>
  );
}

function Shown({ of: r, compared }: { of: VerifiedReceipt; compared: boolean }): JSX.Element {
  const kept = r.changed.filter((c) => !c).length;
  const nothing = kept === 0 ? "" : `; ${kept} found nothing to change`;
  return (
    <section aria-label="What it shows">
      <p class="good" role="status">
        The receipt holds{compared ? ", and the write appended this file" : ""}.
        {r.cosigners.length === 0 && " No witness has cosigned: the operator could show others another history."}
      </p>
      <Facts of={[
        ["scope", scopeText(r.scope)], ["client id", r.clientId], ["sequence", r.sequence.toString()],
        ["session", r.session.toString()], ["transaction", r.txId], ["index", r.index.toString()],
        ["ledger time", time(r.ledgerTime)], ["actor", r.actor], ["payload hash", hex(r.payloadHash)],
        ["outcome", `committed, operations ${r.changed.length}${nothing}`], ["block", r.blockHeight.toString()],
        ["checkpoint", `${r.origin}, ${r.size} blocks`],
        ["cosigned by", r.cosigners.map((w) => `${w.name} at ${time({ date: w.time })}`).join(", ") || "no witness"],
      ]} />
    </section>
  );
}
