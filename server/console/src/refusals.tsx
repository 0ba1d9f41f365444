// The last writes that the server refused, each with what its client should do.

import { WriteErrorCode } from "@seqledger/client";
import type { Refusal } from "@seqledger/gen/admin_pb";
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { admin, pollMs } from "./api";
import { advice } from "./advice";
import { scopeText, timeOf } from "./format";
import { Problem, Table, useEvery } from "./parts";

const everyMs = 1000;
// A server keeps the same number.
const most = 256;

/** LastRefusals shows them as they arrive. */
export function LastRefusals({ answers }: { answers: boolean }): JSX.Element | null {
  const [refusals, setRefusals] = useState<Refusal[]>([]);
  const [last, setLast] = useState(0n);
  const error = useEvery(everyMs, async (signal) => {
    const news = await admin.listRefusals({ after: last }, { signal, timeoutMs: pollMs });
    // A restarted server counts from zero, and has sent everything that it keeps.
    const before = news.last < last ? [] : refusals;
    if (news.last !== last) setRefusals([...news.refusals.reverse(), ...before].slice(0, most));
    setLast(news.last);
  });
  const problem = answers ? error : undefined; // otherwise the page says so above
  if (refusals.length === 0) return <Problem error={problem} />;
  return (
    <>
      <Problem error={problem} />
      <Table caption={`The writes that this node has refused last; the newest first, at most ${most}`}
        head={["time (UTC)", "reason", "call", "scope", "client id", "sequence", "message", "what the client should do"]}
        rows={refusals.map((r) => {
          const code = WriteErrorCode[r.code] ?? String(r.code);
          return [
            timeOf(r.time), code, r.method, scopeText(r.scope) || "–", r.clientId || "–",
            r.sequence === 0n ? "–" : r.sequence.toString(), r.message, advice(code),
          ];
        })} />
    </>
  );
}
