// A write whose answer is deliberately lost, and its retry.

import type { Receipt } from "@seqledger/gen/types_pb";
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { ledger } from "./api";
import { scopeOf } from "./format";
import { Field, Form } from "./parts";

/** TryIt writes twice under one number, and shows that the write happened once. */
export function TryIt(): JSX.Element {
  const [scope, setScope] = useState("playground/main");
  const [text, setText] = useState("hello");
  const [steps, setSteps] = useState<(string | JSX.Element)[]>([]);
  const run = async (signal: AbortSignal): Promise<void> => {
    const log: (string | JSX.Element)[] = [];
    const say = (step: string | JSX.Element): void => {
      log.push(step);
      setSteps([...log]);
    };
    say("");
    log.length = 0;
    const clientId = `console-${crypto.getRandomValues(new Uint32Array(2)).join("-")}`;
    const request = {
      scope: scopeOf(scope), clientId, sequence: 1n,
      operations: [{ operation: { case: "append" as const, value: { payload: new TextEncoder().encode(text) } } }],
    };
    await ledger.write(request, { signal });
    say(`Wrote sequence 1 of ${clientId}, and threw the answer away: this side does not know whether it was committed.`);
    const { receipt } = await ledger.write(request, { signal });
    say(<>Wrote the same once more, under the same number: {describe(receipt!)}</>);
    const { state } = await ledger.getClientState({ scope: request.scope, clientId }, { signal });
    say(`The stream has ${state!.lastCommittedSequence} committed write.`);
  };
  return (
    <>
      <h1>Try it</h1>
      <p>This writes one small transaction into the ledger, which keeps it for ever.</p>
      <Form action={run} verb="Write, lose the answer, write again">
        <Field label="Scope" value={scope} onValue={setScope} />
        <Field label="Text" value={text} onValue={setText} />
      </Form>
      <ol aria-live="polite">{steps.map((s, i) => <li key={i}>{s}</li>)}</ol>
    </>
  );
}

const describe = (r: Receipt): JSX.Element => (
  <>
    the receipt of <a href={`#/transaction/${r.txId}`}>{r.txId}</a>
    {r.replayed ? ", marked as replayed: it had been committed the first time." : ", committed now."}
  </>
);
