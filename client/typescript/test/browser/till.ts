// A page with a till, which writes to a ledger of another origin and has its journal in IndexedDB.

import assert from "node:assert/strict";
import { mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test, type TestContext } from "node:test";
import type { BrowserContext, Page } from "playwright-core";
import { Ledger, payloads, temporary } from "../support.js";
import { launchFor, missing, servePage } from "./chromium.js";
import type { TillOptions } from "./page.js";

let site: Awaited<ReturnType<typeof servePage>>;
before(async () => {
  if (missing === false) site = await servePage();
});
after(() => site?.server.close());

/** The URL of the page, and its origin. */
export const pageUrl = (): string => site.url;
export const origin = (): string => new URL(site.url).origin;

export interface Setup {
  ledger: Ledger;
  server: string;
  /** The directory of the browser's profile. */
  profile: string;
  context: BrowserContext;
  page: Page;
}

/** Starts a ledger that allows calls from the page's origin, which differs from its own, and opens the page. */
export async function setup(t: TestContext, ...flags: string[]): Promise<Setup> {
  const ledger = await Ledger.start(temporary(t), "127.0.0.1:0", "--cors-origin", origin(), ...flags);
  t.after(() => ledger.kill());
  const profile = mkdtempSync(join(tmpdir(), "seqledger-web-"));
  const context = await launchFor(t, profile);
  const page = context.pages()[0] ?? (await context.newPage());
  await visit(page);
  return { ledger, server: `http://${ledger.address}`, profile, context, page };
}

export async function visit(page: Page): Promise<void> {
  await page.goto(pageUrl());
  await page.waitForFunction(() => document.title === "ready");
}

export const tags = (from: number, n: number): string[] => Array.from({ length: n }, (_, i) => `pay-${from + i}`);

/** Opens the till's journal and Writer, and returns the tags that were in the journal. */
export const open = (page: Page, server: string, options: TillOptions = {}): Promise<string[]> =>
  page.evaluate(([server, options]) => window.till.open(server, options), [server, options] as const);

export const submit = (page: Page, all: string[]): Promise<void> =>
  page.evaluate((all) => window.till.submit(...all), all);
export const settle = (page: Page): Promise<string[]> => page.evaluate(() => window.till.settle());

/** The position of the till's Writer, and its error if it has ended. */
export const position = (page: Page): Promise<{ session: string; next: string; error: string }> =>
  page.evaluate(() => window.till.position());

/** Submits again what the journal does not know, as a till does when it restarts. */
export async function goOn(page: Page, server: string, all: string[]): Promise<void> {
  const recovered = await open(page, server);
  await submit(page, all.filter((tag) => !recovered.includes(tag)));
  for (const outcome of await settle(page)) assert.match(outcome, / committed$|tag-in-use|is in use/, outcome);
}

/** Compares the contents of the ledger with the intended writes. */
export function once(ledger: Ledger, all: string[]): void {
  assert.deepEqual(payloads(ledger.address).sort(), [...all].sort());
}

// Evaluation in a page waits without limit. If a test hangs, the report should name the test, not only its file.
const limitMs = 240_000;

export const browser = (name: string, run: (t: TestContext) => Promise<void>): void =>
  void test(name, { skip: missing === false ? false : missing, timeout: limitMs }, run);
