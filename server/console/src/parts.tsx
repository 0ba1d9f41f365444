// Parts of pages.

import type { ComponentChildren, JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { key, messageOf, needsKey } from "./api";

/** Problem shows an error, or nothing if there is none. */
export function Problem({ error }: { error: unknown }): JSX.Element | null {
  if (error === undefined) return null;
  const ask = key.get() === "" ? " Please give an API key above." : " Please forget the key above, and give another.";
  const hint = needsKey(error) ? ask : "";
  return <p class="problem" role="alert">{messageOf(error)}{hint}</p>;
}

/** Field is an input with its label. */
export function Field(
  props: { label: string; value: string; onValue: (value: string) => void; type?: string; placeholder?: string;
    wide?: boolean },
): JSX.Element {
  return (
    <label class={props.wide ? "wide" : undefined}>
      <span>{props.label}</span>
      <input
        type={props.type ?? "text"} value={props.value} placeholder={props.placeholder} spellcheck={false}
        autocomplete="off" onInput={(e) => props.onValue(e.currentTarget.value)}
      />
    </label>
  );
}

/** Form runs an action, and shows its error. Another action, or leaving the page, cancels the previous one. */
export function Form(
  { action, children, verb }: {
    action: (signal: AbortSignal) => Promise<void>; children: ComponentChildren; verb: string;
  },
): JSX.Element {
  const [error, setError] = useState<unknown>();
  const [busy, setBusy] = useState(false);
  const running = useRef<AbortController>();
  useEffect(() => () => running.current?.abort(), []);
  const run = async (e: Event): Promise<void> => {
    e.preventDefault();
    running.current?.abort();
    const mine = (running.current = new AbortController());
    setError(undefined);
    setBusy(true);
    try {
      await action(mine.signal);
    } catch (e) {
      if (!mine.signal.aborted) setError(e);
    }
    if (running.current === mine) setBusy(false);
  };
  return (
    <form onSubmit={run}>
      {children}
      <button type="submit" aria-busy={busy}>{verb}</button>
      <Problem error={error} />
    </form>
  );
}

/**
 * Action is a button within a page that runs an action, and shows its error. Pressing it again cancels the previous
 * action.
 */
export function Action(
  { action, children }: { action: (signal: AbortSignal) => Promise<void>; children: ComponentChildren },
): JSX.Element {
  const [error, setError] = useState<unknown>();
  const running = useRef<AbortController>();
  useEffect(() => () => running.current?.abort(), []);
  const run = async (): Promise<void> => {
    running.current?.abort();
    const mine = (running.current = new AbortController());
    setError(undefined);
    await action(mine.signal).catch((e: unknown) => mine.signal.aborted || setError(e));
  };
  return (
    <>
      <button type="button" class="link" onClick={() => void run()}>{children}</button>
      <Problem error={error} />
    </>
  );
}

/** Facts is a list of names and values. */
export function Facts({ of }: { of: [string, ComponentChildren][] }): JSX.Element {
  return (
    <dl>
      {of.map(([name, value]) => <div key={name}><dt>{name}</dt><dd>{value}</dd></div>)}
    </dl>
  );
}

/**
 * Table has a heading for users of screen readers. On a telephone each row is a list of its cells with their names; the
 * roles keep it a table for a screen reader.
 */
export function Table(
  { caption, head, rows }: { caption: string; head: string[]; rows: ComponentChildren[][] },
): JSX.Element {
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label={caption}>
      <table role="table">
        <caption>{caption}</caption>
        <thead role="rowgroup">
          <tr role="row">{head.map((h) => <th key={h} scope="col" role="columnheader">{h}</th>)}</tr>
        </thead>
        <tbody role="rowgroup">
          {rows.map((row, i) => (
            <tr key={i} role="row">
              {row.map((cell, j) => <td key={j} role="cell" data-name={head[j]}><div>{cell}</div></td>)}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

const width = 300;
const height = 60;

/** Series is a line of a plot. */
export interface Series {
  name: string;
  values: number[];
  text: string;
}

/**
 * Plot draws the last values of something, with the newest at the right; NaN leaves a gap. The lines of several series
 * also differ in their dashes, and the newest value of each is shown below. top is the largest possible value, if
 * known.
 */
export function Plot(
  { name, series, text, points, top }: {
    name: string; series: Series[]; text: string; points: number; top?: number | undefined;
  },
): JSX.Element {
  const highest = top ?? Math.max(...series.flatMap((s) => s.values).filter(Number.isFinite), Number.MIN_VALUE);
  return (
    <figure>
      <figcaption>{name}<strong>{text}</strong></figcaption>
      <svg viewBox={`0 0 ${width} ${height}`} role="img" aria-label={`${name}: ${text}`} preserveAspectRatio="none">
        {series.map((s, i) => <path key={s.name} class={`line${i}`} d={lineOf(s.values, points, highest)} />)}
      </svg>
      {series.length > 1 && (
        <ul class="legend">
          {series.map((s, i) => (
            <li key={s.name}>
              <svg viewBox="0 0 20 4" aria-hidden="true"><path class={`line${i}`} d="M0 2L20 2" /></svg>
              {s.name} <strong>{s.text}</strong>
            </li>
          ))}
        </ul>
      )}
    </figure>
  );
}

/** lineOf returns the SVG path of a line. */
function lineOf(values: number[], points: number, highest: number): string {
  const from = points - values.length;
  let line = "";
  let pen = "M";
  values.forEach((v, i) => {
    if (!Number.isFinite(v)) {
      pen = "M";
      return;
    }
    const x = ((from + i) / (points - 1)) * width;
    line += `${pen}${x.toFixed(1)} ${(height - 2 - (v / highest) * (height - 6)).toFixed(1)}`;
    pen = "L";
  });
  return line;
}

const asleep = new Error("this page was in the background and asked for nothing");

/**
 * useEvery calls an action at intervals while the page is visible, and returns its latest error. A page that comes back
 * shows what it knew before as old until there is an answer.
 */
export function useEvery(ms: number, action: (signal: AbortSignal) => Promise<void>): unknown {
  const [error, setError] = useState<unknown>();
  const latest = useRef(action);
  latest.current = action;
  useEffect(() => {
    const ended = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    const turn = async (): Promise<void> => {
      timer = undefined;
      let failed: unknown;
      try {
        if (!document.hidden) await latest.current(ended.signal);
      } catch (e) {
        failed = e;
      }
      if (ended.signal.aborted) return;
      setError(document.hidden ? asleep : failed);
      timer = setTimeout(turn, ms);
    };
    const turned = (): void => {
      if (document.hidden) setError(asleep);
      if (document.hidden || timer === undefined) return; // a turn is under way
      clearTimeout(timer);
      void turn();
    };
    document.addEventListener("visibilitychange", turned);
    void turn();
    return () => {
      document.removeEventListener("visibilitychange", turned);
      ended.abort();
      clearTimeout(timer);
    };
  }, [ms]);
  return error;
}
