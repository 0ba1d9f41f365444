// Opening the console of a real server in Chromium, and navigating in it.

import assert from "node:assert/strict";
import { mkdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { test, type TestContext } from "node:test";
import { setTimeout } from "node:timers/promises";
import { type Client as Calls, createClient as connectClient } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-web";
import type { BrowserContext, Page } from "playwright-core";
import { IdempotencyService, LeaseExpiry, RecordOutcome } from "../../src/gen/seqledger/v1/idempotency_pb.js";
import { append, createClient, setEntity } from "../../src/index.js";
import { Ledger, run, startLedger } from "../support.js";
import { launchFor, missing } from "./chromium.js";
import { type pages, shapes, widths } from "./screenshots.js";

const axe = createRequire(import.meta.url).resolve("axe-core/axe.min.js");
export const scope = { organization: "acme", vault: "main" };

/** Opens the console, and collects the browser's errors and the hosts that it calls. */
export async function open(
  t: TestContext, address: string,
): Promise<{ context: BrowserContext; page: Page; complaints: string[]; hosts: Set<string> }> {
  const context = await launchFor(t);
  const page = context.pages()[0] ?? (await context.newPage());
  const complaints: string[] = [];
  const hosts = new Set<string>();
  page.on("console", (m) => {
    if (m.type() === "error") complaints.push(m.text());
  });
  page.on("pageerror", (e) => complaints.push(String(e)));
  page.on("request", (r) => {
    if (!r.url().startsWith("data:")) hosts.add(new URL(r.url()).host);
  });
  await page.goto(`http://${address}/`);
  return { context, page, complaints, hosts };
}

/** Checks a page that is fully shown, and takes a screenshot. */
export async function look(page: Page, name: string): Promise<void> {
  const directory = process.env["SCREENSHOTS"];
  if (directory !== undefined) {
    mkdirSync(directory, { recursive: true });
    await page.screenshot({ path: join(directory, `${name}.png`), fullPage: true });
  }
  // The page's policy allows no foreign scripts; the debugger's connection is not bound by it.
  const session = await page.context().newCDPSession(page);
  await session.send("Runtime.evaluate", { expression: readFileSync(axe, "utf8") });
  const { result } = await session.send("Runtime.evaluate", {
    expression: "axe.run().then((r) => JSON.stringify(r.violations.map((v) => [v.id, v.nodes.map((n) => n.html)])))",
    awaitPromise: true, returnByValue: true,
  });
  await session.detach();
  assert.deepEqual(JSON.parse(result.value as string), [], name);
}

/** Checks a page on a phone and on a desktop, light and dark. Nothing is wider than a phone. */
export async function lookAll(page: Page, name: (typeof pages)[number]): Promise<void> {
  const before = page.viewportSize()!;
  for (const { suffix, width, scheme } of shapes) {
    await page.setViewportSize({ width, height: 800 });
    await page.emulateMedia({ colorScheme: scheme });
    const wide = await page.evaluate(() => document.documentElement.scrollWidth);
    assert.ok(wide <= width, `${name}-${suffix}: ${wide} of ${width}`);
    const cut = await page.evaluate(() =>
      [...document.querySelectorAll(".scroll")].filter((e) => e.scrollWidth > e.clientWidth).map((e) => e.ariaLabel));
    if (width === widths.telephone) assert.deepEqual(cut, [], `${name}-${suffix}: tables that are wider`);
    await look(page, `${name}-${suffix}`);
  }
  await page.setViewportSize(before);
  await page.emulateMedia({ colorScheme: null });
}

export const visit = (page: Page, name: string): Promise<void> =>
  page.getByRole("navigation").getByRole("link", { name, exact: true }).click();
export const fill = (page: Page, label: string, value: string): Promise<void> =>
  page.getByLabel(label, { exact: true }).first().fill(value);
export const press = (page: Page, name: string): Promise<void> =>
  page.getByRole("main").getByRole("button", { name, exact: true }).first().click();

/** Writes the data that the pages show, and returns a transaction that shares its block with others. */
export async function written(ledger: Ledger): Promise<string> {
  await using client = createClient({ baseUrl: `http://${ledger.address}` });
  const writer = await client.openWriter({ scope, clientId: "till-7" });
  const pendings = Array.from({ length: 30 }, (_, i) => writer.submit([append(`sale ${i}`)]));
  await Promise.all(pendings.map((p) => p.settled));
  await writer.write([setEntity("balance/42", "100")]);
  await writer.write([setEntity("balance/42", "1", { condition: { notExists: true } })]).catch(() => {});
  return (await pendings[20]!.settled).txId;
}

/** Starts three nodes, and returns them when all are voters. The first leads. */
export async function startCluster(t: TestContext): Promise<Ledger[]> {
  const alone = ["--peer-listen", "127.0.0.1:0"];
  const first = await startLedger(t, ...alone);
  const members = (): { id: string; voter?: boolean; peerAddress?: string }[] =>
    JSON.parse(run("cluster", "status", "--server", first.address, "--json")).members;
  // Its address is in the log a moment after it accepts calls.
  let peer: string | undefined;
  while ((peer = members()[0]!.peerAddress) === undefined) await setTimeout(50);
  const joined = ["--join", peer, "--join-token-file", `${first.data}/JOIN-TOKEN`];
  const nodes = [first, await startLedger(t, ...alone, ...joined), await startLedger(t, ...alone, ...joined)];
  while (members().filter((m) => m.voter).length < nodes.length) await setTimeout(50);
  return nodes;
}

/** recordsOf returns a client of the service of keyed records, with a credential if one is given. */
export function recordsOf(ledger: Ledger, key = ""): Calls<typeof IdempotencyService> {
  return connectClient(IdempotencyService, createConnectTransport({
    baseUrl: `http://${ledger.address}`, useBinaryFormat: true,
    interceptors: [(next) => (request) => {
      if (key !== "") request.header.set("Authorization", `Bearer ${key}`);
      return next(request);
    }],
  }));
}

/** reserve reserves the key order-4711, whose lease ends without a result after a while, and returns the outcome. */
export async function reserve(ledger: Ledger, key = ""): Promise<{ outcome: RecordOutcome; response: string }> {
  const { outcome, record } = await recordsOf(ledger, key).reserve({
    record: { scope, namespace: "payments", key: "order-4711" },
    fingerprint: { algorithm: 1, digest: new Uint8Array(32) }, attemptId: crypto.getRandomValues(new Uint8Array(16)),
    lease: { seconds: 1n }, onLeaseExpired: LeaseExpiry.INDETERMINATE,
  });
  return { outcome, response: new TextDecoder().decode(record?.response) };
}

/** listIndeterminate presses List until the lease has ended. A press ends the listing before, so it waits for that. */
export async function listIndeterminate(page: Page): Promise<void> {
  await page.waitForFunction(() => {
    if (document.body.innerText.includes("INDETERMINATE")) return true;
    const list = document.querySelector<HTMLButtonElement>("main button")!;
    if (list.getAttribute("aria-busy") !== "true") list.click();
    return false;
  }, undefined, { polling: 500 });
}

/** newKey creates a credential in an auth file, and returns its secret. */
export function newKey(file: string, id: string, role: string, ...flags: string[]): string {
  const told = run("auth", "new-key", "--id", id, "--role", role, ...flags, "--append", file);
  return /\b[A-Za-z0-9_-]{30,}\b/.exec(told)![0];
}

/** logIn enters an API key in the console. */
export async function logIn(page: Page, key: string): Promise<void> {
  await fill(page, "API key", key);
  await page.getByRole("button", { name: "Use" }).click();
  await page.getByRole("button", { name: "Forget the key" }).waitFor();
}

// Evaluation in a page waits without limit. If a test hangs, the report should name the test, not only its file.
const limitMs = 240_000;

export const browser = (name: string, run: (t: TestContext) => Promise<void>): void =>
  void test(name, { skip: missing === false ? false : missing, timeout: limitMs }, run);
