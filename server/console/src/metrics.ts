// Reads the server's metrics, and computes rates and quantiles from two readings.

/** Sample is one reading: the value of each series, by its name and labels as the server writes them. */
export interface Sample {
  at: number; // milliseconds of performance.now
  values: Map<string, number>;
}

/** parse parses the text format of Prometheus. */
export function parse(text: string, at: number): Sample {
  const values = new Map<string, number>();
  for (const line of text.split("\n")) {
    if (line === "" || line.startsWith("#")) continue;
    const space = line.lastIndexOf(" ");
    values.set(line.slice(0, space), Number(line.slice(space + 1)));
  }
  return { at, values };
}

/** label returns a label's value in the name of a series. */
export const label = (series: string, name: string): string =>
  new RegExp(`[{,]${name}="([^"]*)"`).exec(series)?.[1] ?? "";

/** growth returns the increase of each counter that increased. A restart of the server counts as no growth. */
export function growth(before: Sample, now: Sample, matches: (series: string) => boolean): [series: string, n: number][] {
  const grown: [string, number][] = [];
  for (const [series, value] of now.values) {
    const n = matches(series) ? value - (before.values.get(series) ?? 0) : 0;
    if (n > 0) grown.push([series, n]);
  }
  return grown;
}

/** rates returns the per-second increase of some counters, summed by the value of one label. */
export function rates(
  before: Sample, now: Sample, name: string, matches: (series: string) => boolean,
): Map<string, number> {
  const all = new Map<string, number>();
  const seconds = Math.max(0.001, (now.at - before.at) / 1000);
  for (const [series, n] of growth(before, now, matches)) {
    const value = label(series, name);
    all.set(value, (all.get(value) ?? 0) + n / seconds);
  }
  return all;
}

/** rate returns the per-second increase of some counters in total. */
export function rate(before: Sample, now: Sample, matches: (series: string) => boolean): number {
  const grown = growth(before, now, matches).reduce((sum, [, n]) => sum + n, 0);
  return grown / Math.max(0.001, (now.at - before.at) / 1000);
}

/** quantile returns a quantile of the values that a histogram counted between two readings; NaN if there are none. */
export function quantile(before: Sample, now: Sample, name: string, q: number): number {
  const counted = new Map<number, number>(); // by upper bound, summed over all labels
  for (const [series, value] of now.values) {
    if (!series.startsWith(`${name}_bucket{`)) continue;
    const le = Number(label(series, "le").replace("+Inf", "Infinity"));
    counted.set(le, (counted.get(le) ?? 0) + value - (before.values.get(series) ?? 0));
  }
  const buckets = [...counted].map(([le, n]) => ({ le, n })).sort((a, b) => a.le - b.le);
  const total = buckets.at(-1)?.n ?? 0;
  if (total <= 0) return NaN;
  let lower = 0;
  let below = 0;
  for (const { le, n } of buckets) {
    if (n >= q * total) {
      // As in Prometheus: evenly spread within the bucket.
      return le === Infinity ? lower : lower + (le - lower) * ((q * total - below) / Math.max(1, n - below));
    }
    lower = le;
    below = n;
  }
  return lower;
}
