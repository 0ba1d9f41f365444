// Whether the ledger is healthy.

import type { ScrubStatus, Status } from "@seqledger/gen/ledger_pb";
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { admin, fetchMetrics, pollMs } from "./api";
import { advice, meaning } from "./advice";
import { Members } from "./cluster";
import { count, seconds, size, time, timeOf } from "./format";
import { label, parse, quantile, rate, rates, type Sample } from "./metrics";
import { Facts, Plot, Problem, type Series, Table, useEvery } from "./parts";
import { LastRefusals } from "./refusals";

const everyMs = 1000;
const points = 120;
const commits = (s: string): boolean => s.startsWith("seqledger_decisions_total{") && label(s, "code") === "COMMITTED";
const refusals = (s: string): boolean => s.startsWith("seqledger_results_total{") &&
  label(s, "code") !== "COMMITTED" && label(s, "code") !== "REPLAYED";

/** Point is the difference of two readings of the metrics, a second apart. */
interface Point {
  writes: number;
  refused: Map<string, number>; // by reason
  p50: number;
  p99: number;
  logP99: number;
  log: number;
  pending: number;
  free: number;
  disk: number;
}

/** Overview shows the state and the last two minutes, as long as the page is open. */
export function Overview(): JSX.Element {
  const [status, setStatus] = useState<Status>();
  const [last, setLast] = useState<Sample>();
  const [history, setHistory] = useState<Point[]>([]);
  const [answeredAt, setAnsweredAt] = useState("");
  const all = status !== undefined && seesAll(status);
  const statusError = useEvery(everyMs, async (signal) => {
    setStatus((await admin.getStatus({}, { signal, timeoutMs: pollMs })).status);
    setAnsweredAt(time({ date: new Date() }));
  });
  const error = useEvery(everyMs, async (signal) => {
    if (!all) return;
    const now = parse(await fetchMetrics(signal), performance.now());
    if (last !== undefined) {
      const value = (name: string): number => now.values.get(`seqledger_${name}`) ?? NaN;
      const took = "seqledger_write_duration_seconds";
      setHistory([...history.slice(1 - points), {
        writes: rate(last, now, commits), refused: rates(last, now, "code", refusals),
        p50: quantile(last, now, took, 0.5), p99: quantile(last, now, took, 0.99),
        logP99: quantile(last, now, "seqledger_log_store_duration_seconds", 0.99),
        log: value("log_pending_bytes"), pending: value("pending_bytes"),
        free: value("data_disk_free_bytes"), disk: value("data_disk_size_bytes"),
      }]);
    }
    setLast(now);
  });
  // One line is enough where the server answers to nothing.
  const figuresError = statusError === undefined ? error : undefined;
  return (
    <>
      <h1>Overview</h1>
      <Problem error={statusError} />
      {status && <State status={status} old={statusError === undefined ? undefined : answeredAt} />}
      <Problem error={figuresError} />
      {status && !all && <p>This credential may not see figures about the whole ledger.</p>}
      {all && <Plots history={history} />}
      {all && <Members answers={statusError === undefined} />}
      {all && <LastRefusals answers={statusError === undefined} />}
      {all && last && <Refusals sample={last} />}
    </>
  );
}

/** The progress of the comparison of the stored bytes with their checksums. */
function scrubbed(scrub: ScrubStatus | undefined): string {
  if (scrub === undefined) return "not compared";
  const last = scrub.lastRound ? `last round ${timeOf(scrub.lastRound)}` : "first round";
  return scrub.position > 0n ? `${size(Number(scrub.position))} of ${size(Number(scrub.size))}, ${last}` : last;
}

/** Whether the caller is an admin. The server tells others nothing of the whole ledger, and zeros for its numbers. */
const seesAll = ({ config }: Status): boolean => config !== undefined;

/** Whether the node takes writes; a node that does not answer may take none. */
function health(status: Status, old: string | undefined): [well: boolean, text: string] {
  if (old !== undefined) return [false, `Whether it takes writes is not known. What follows is of ${old} (UTC).`];
  const { notReady = "its state is not known" } = status.node ?? {};
  return notReady === "" ? [true, "Takes writes."] : [false, `Takes no writes: ${notReady}`];
}

/** State shows the latest status; old is when that was, if the server does not answer any more. */
function State({ status, old }: { status: Status; old: string | undefined }): JSX.Element {
  const { node, config, caller } = status;
  const [well, text] = health(status, old);
  const ofAdmins: [string, string][] = node === undefined || config === undefined ? [] : [
    ["index", status.index.toString()], ["streams", count(Number(status.streams))],
    ["started", timeOf(node.startedAt)], ["disk free", size(Number(node.diskFreeBytes))],
    ["checksums", scrubbed(node.scrub)],
    ["state file", size(Number(node.stateBytes))], ["log", size(Number(node.logBytes))],
    ["reservations", count(Number(node.reservations))],
    ["receipt window", String(config.receiptWindow)],
    ["client TTL", config.clientTtl ? `${config.clientTtl.seconds} s` : "–"],
  ];
  return (
    <>
      <p class={well ? "good" : "problem"} role="status">{text}</p>
      <Facts of={[
        ["ledger", status.ledgerId], ["version", status.version], ["ledger time", timeOf(status.ledgerTime)],
        ...ofAdmins, ["you are", `${caller?.actor ?? ""} (${caller?.role ?? ""})`],
      ]} />
    </>
  );
}

function Plots({ history }: { history: Point[] }): JSX.Element {
  const plots: [string, Exclude<keyof Point, "refused">, (n: number) => string][] = [
    ["writes a second", "writes", count], ["write p50", "p50", seconds], ["write p99", "p99", seconds],
    ["log write p99", "logP99", seconds], ["log since its truncation", "log", size],
    ["waits for the state file", "pending", size], ["disk free", "free", size],
  ];
  const reasons = reasonsOf(history);
  return (
    <div class="plots">
      {plots.map(([name, field, text]) => {
        const values = history.map((p) => p[field]);
        const newest = values.at(-1) ?? NaN;
        return (
          <Plot key={field} name={name} series={[{ name, values, text: "" }]} points={points}
            text={Number.isFinite(newest) ? text(newest) : "–"} top={field === "free" ? history.at(-1)?.disk : undefined} />
        );
      })}
      <Plot name="refused a second" series={reasons} points={points}
        text={history.length === 0 ? "–" : count([...history.at(-1)!.refused.values()].reduce((a, b) => a + b, 0))} />
    </div>
  );
}

// More lines than this cannot be told apart.
const maxReasons = 5;

/** reasonsOf returns a line for each recent reason for a refused write, most frequent first. */
function reasonsOf(history: Point[]): Series[] {
  const totals = new Map<string, number>();
  for (const { refused } of history) {
    for (const [code, n] of refused) totals.set(code, (totals.get(code) ?? 0) + n);
  }
  const codes = [...totals.keys()].sort((a, b) => totals.get(b)! - totals.get(a)!);
  const line = (name: string, all: string[]): Series => {
    const values = history.map(({ refused }) => all.reduce((sum, code) => sum + (refused.get(code) ?? 0), 0));
    return { name, values, text: count(values.at(-1) ?? 0) };
  };
  const lines = codes.slice(0, maxReasons).map((code) => line(code, [code]));
  return codes.length > maxReasons ? [...lines, line("others", codes.slice(maxReasons))] : lines;
}

/** Refusals since the start, each with what a client should do. */
function Refusals({ sample }: { sample: Sample }): JSX.Element | null {
  const totals = new Map<string, number>();
  for (const [series, n] of sample.values) {
    if (refusals(series) && n > 0) totals.set(label(series, "code"), (totals.get(label(series, "code")) ?? 0) + n);
  }
  if (totals.size === 0) return <p>No write was refused since the server's start.</p>;
  const rows = [...totals].sort((a, b) => b[1] - a[1]).map(([code, n]) => [code, count(n), meaning(code), advice(code)]);
  return (
    <Table caption="Refused since the server's start" rows={rows}
      head={["reason", "writes", "what it means", "what the client should do"]} />
  );
}
