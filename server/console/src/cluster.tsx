// The nodes that keep the ledger, if there are several.

import { type Cluster, type ClusterMember, StateComparison } from "@seqledger/gen/ledger_pb";
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { admin } from "./api";
import { count, size } from "./format";
import { Plot, Problem, Table, useEvery } from "./parts";

const everyMs = 1000;
const points = 120;
// A node without a majority looks for a leader before it answers by itself.
const timeoutMs = 15_000;

/**
 * Members shows the nodes and how far each is behind. It shows nothing for a single node, and nothing of before when the
 * server does not answer.
 */
export function Members({ answers }: { answers: boolean }): JSX.Element | null {
  const [cluster, setCluster] = useState<Cluster>();
  const [history, setHistory] = useState<Map<bigint, number>[]>([]);
  const error = useEvery(everyMs, async (signal) => {
    const now = (await admin.getCluster({}, { signal, timeoutMs })).cluster!;
    setCluster(now);
    setHistory((before) => [...before.slice(1 - points), new Map(now.members.map((m) => [m.id, behind(now, m)]))]);
  });
  if (!answers) return null; // the page says so above
  if (error !== undefined) return <Problem error={error} />;
  if (cluster === undefined || cluster.members.length < 2) return null;
  const caption = cluster.leader === 0n ? "Nodes of the cluster" : `Nodes of the cluster; node ${cluster.leader} leads`;
  return (
    <>
      {cluster.leader === 0n &&
        <p class="problem" role="status">No node leads: an election goes on, or most voters are away.</p>}
      <Table caption={`${caption} (term ${cluster.term})`}
        head={["node", "role", "state", "entries behind", "digest", "disk left", "for nodes", "for clients"]}
        rows={cluster.members.map((m) => [
          m.id.toString(), role(cluster, m), state(cluster, m), text(behind(cluster, m)), digest(m), disk(m),
          m.peerAddress, m.clientAddress || "–",
        ])} />
      <div class="plots">
        {cluster.members.filter((m) => m.id !== cluster.leader).map((m) => (
          <Plot key={m.id.toString()} name={`node ${m.id} behind`} text={text(behind(cluster, m))} points={points}
            series={[{ name: "", text: "", values: history.map((h) => h.get(m.id) ?? NaN) }]} />
        ))}
      </div>
    </>
  );
}

const role = (c: Cluster, m: ClusterMember): string => m.id === c.leader ? "leader" : m.voter ? "voter" : "learner";

/** How many committed log entries a node lacks; NaN unless a leader has answered, because only a leader knows. */
function behind(c: Cluster, m: ClusterMember): number {
  if (c.self !== c.leader) return NaN;
  return c.committedIndex > m.matchedIndex ? Number(c.committedIndex - m.matchedIndex) : 0;
}

function state(c: Cluster, m: ClusterMember): JSX.Element | string {
  if (c.self !== c.leader) return "unknown";
  return m.active ? "alive" : <span class="problem">away</span>;
}

/** The result of the last comparison of the node's state with that of the node that answers. */
function digest(m: ClusterMember): JSX.Element | string {
  switch (m.state) {
    case StateComparison.SAME: return "same";
    case StateComparison.DIFFERS: return <span class="problem">differs</span>;
    default: return "unknown";
  }
}

const disk = (m: ClusterMember): string => m.diskSizeBytes === 0n ? "unknown" : size(Number(m.diskFreeBytes));

const text = (n: number): string => Number.isFinite(n) ? count(n) : "unknown";
