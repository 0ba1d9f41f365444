// Texts for values.

import type { Timestamp } from "@bufbuild/protobuf/wkt";
import type { Operation, Scope } from "@seqledger/client";

const decoder = new TextDecoder("utf-8", { fatal: true });

/** bytes shows a value as text if it is text, otherwise in hex. */
export function bytes(value: Uint8Array): string {
  try {
    const text = decoder.decode(value);
    if (!/[\u0000-\u0008\u000b-\u001f\u007f]/.test(text)) return text;
  } catch {
    // not text
  }
  return `0x${hex(value)}`;
}

export const hex = (value: Uint8Array): string => Array.from(value, (b) => b.toString(16).padStart(2, "0")).join("");

export const time = (t: { date: Date } | undefined): string =>
  t === undefined ? "–" : t.date.toISOString().replace("T", " ").replace("Z", "");

export const timeOf = (t: Timestamp | undefined): string =>
  time(t && { date: new Date(Number(t.seconds) * 1000 + t.nanos / 1e6) });

export const scopeText = (s: Scope | undefined): string =>
  s === undefined ? "" : s.vault ? `${s.organization}/${s.vault}` : s.organization;

/** scopeOf parses org/vault; the first slash separates the two, as on the command line. */
export function scopeOf(text: string): Scope {
  const slash = text.indexOf("/");
  return slash < 0 ? { organization: text } : { organization: text.slice(0, slash), vault: text.slice(slash + 1) };
}

/** numberOf parses a number that was typed; name is what it is called in the error. */
export function numberOf(name: string, text: string): bigint {
  const digits = text.trim();
  if (/^\d{1,20}$/.test(digits) && BigInt(digits) < 2n ** 64n - 1n) return BigInt(digits);
  throw new Error(`${name} ${JSON.stringify(text)} is no whole number, or too large`);
}

const units = ["B", "KiB", "MiB", "GiB", "TiB"];

export function size(n: number): string {
  let unit = 0;
  for (; n >= 1024 && unit < units.length - 1; unit++) n /= 1024;
  return `${n < 10 && unit > 0 ? n.toFixed(1) : Math.round(n)} ${units[unit]}`;
}

export function seconds(s: number): string {
  if (!Number.isFinite(s)) return "–";
  if (s < 0.001) return `${(s * 1e6).toFixed(0)} µs`;
  return s < 1 ? `${(s * 1000).toFixed(1)} ms` : `${s.toFixed(2)} s`;
}

export const count = (n: number): string => Math.round(n).toLocaleString("en");

/** operationText describes an operation in one line. */
export function operationText({ operation: o }: Operation): string {
  switch (o.case) {
    case "setEntity":
      return `set ${o.value.key} = ${bytes(o.value.value)}`;
    case "deleteEntity":
      return `delete ${o.value.key}`;
    case "append":
      return `append ${bytes(o.value.payload)}`;
    case "createRelationship":
    case "deleteRelationship":
      return `${o.case === "createRelationship" ? "relate" : "unrelate"} ${o.value.resource} ${o.value.relation} ` +
        o.value.subject;
    case "expireEntity":
      return `expire ${o.value.key}`;
  }
  return "an operation that this console does not know";
}
