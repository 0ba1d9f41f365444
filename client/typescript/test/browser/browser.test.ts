// The client in pages of Chromium, with a journal in IndexedDB. After each trouble the ledger is read
// with the Go binary: every write that was meant is in it once.

import assert from "node:assert/strict";
import { before, after, test, type TestContext } from "node:test";
import type { BrowserContext, Page } from "playwright-core";
import { Ledger, payloads, temporary } from "../support.js";
import { launchFor, missing, servePage } from "./chromium.js";

let site: Awaited<ReturnType<typeof servePage>>;
before(async () => {
  if (missing === false) site = await servePage();
});
after(() => site?.server.close());

interface Setup {
  ledger: Ledger;
  server: string;
  context: BrowserContext;
  page: Page;
}

/** Starts a ledger that lets the page's origin call, which is another one, and opens the page. */
async function setup(t: TestContext): Promise<Setup> {
  const ledger = await Ledger.start(temporary(t), "127.0.0.1:0", "--cors-origin", new URL(site.url).origin);
  t.after(() => ledger.kill());
  const context = await launchFor(t);
  const page = context.pages()[0] ?? (await context.newPage());
  await visit(page);
  return { ledger, server: `http://${ledger.address}`, context, page };
}

async function visit(page: Page): Promise<void> {
  await page.goto(site.url);
  await page.waitForFunction(() => document.title === "ready");
}

const tags = (from: number, n: number): string[] => Array.from({ length: n }, (_, i) => `pay-${from + i}`);
const open = (page: Page, server: string, wait = false): Promise<string[]> =>
  page.evaluate(([server, wait]) => window.till.open(server as string, wait as boolean), [server, wait]);
const submit = (page: Page, all: string[]): Promise<void> =>
  page.evaluate((all) => window.till.submit(...all), all);
const settle = (page: Page): Promise<string[]> => page.evaluate(() => window.till.settle());

/** Submits again what the journal does not know, as a till does when it starts again. */
async function goOn(page: Page, server: string, all: string[]): Promise<void> {
  const recovered = await open(page, server);
  await submit(page, all.filter((tag) => !recovered.includes(tag)));
  for (const outcome of await settle(page)) assert.match(outcome, / committed$|tag-in-use|is in use/, outcome);
}

function once(ledger: Ledger, all: string[]): void {
  assert.deepEqual(payloads(ledger.address).sort(), [...all].sort());
}

const browser = (name: string, run: (t: TestContext) => Promise<void>): void =>
  void test(name, { skip: missing === false ? false : missing }, run);

browser("a page writes, and its journal outlives a reload in the middle", async (t) => {
  const { ledger, server, page } = await setup(t);
  const all = tags(0, 200);
  assert.deepEqual(await open(page, server), []);
  await submit(page, all);
  await visit(page);
  await goOn(page, server, all);
  once(ledger, all);
});

browser("a renderer that is killed in the middle of writes leaves none behind", async (t) => {
  const { ledger, server, context, page } = await setup(t);
  const all = tags(0, 200);
  await open(page, server);
  await submit(page, all);
  const session = await context.newCDPSession(page);
  const gone = page.waitForEvent("crash");
  void session.send("Page.crash").catch(() => {});
  await gone;
  const next = await context.newPage();
  await page.close();
  await visit(next);
  await goOn(next, server, all);
  once(ledger, all);
});

browser("a second tab is told that the journal is in use, or waits for it", async (t) => {
  const { ledger, server, context, page } = await setup(t);
  await open(page, server);
  const second = await context.newPage();
  await visit(second);
  await assert.rejects(open(second, server), /open in another page/);
  const waiting = open(second, server, true);
  await submit(page, tags(0, 10));
  await settle(page);
  await page.evaluate(() => window.till.close());
  assert.deepEqual(await waiting, []);
  await submit(second, tags(10, 10));
  await settle(second);
  once(ledger, tags(0, 20));
});

browser("what is written offline goes out when the page is online again", async (t) => {
  const { ledger, server, context, page } = await setup(t);
  await open(page, server);
  await context.setOffline(true);
  await submit(page, tags(0, 50));
  await context.setOffline(false);
  for (const outcome of await settle(page)) assert.match(outcome, / committed$/);
  once(ledger, tags(0, 50));
});

browser("a server that is killed, and a clock that jumps, change nothing", async (t) => {
  const { ledger, server, page } = await setup(t);
  await open(page, server);
  await submit(page, tags(0, 100));
  const restarted = await ledger.restart("--cors-origin", new URL(site.url).origin);
  t.after(() => restarted.kill());
  await page.clock.setSystemTime(new Date("2035-01-01"));
  await submit(page, tags(100, 100));
  for (const outcome of await settle(page)) assert.match(outcome, / committed$/);
  once(restarted, tags(0, 200));
});

browser("without room in the browser a write is refused before it has a number", async (t) => {
  const { ledger, server, context, page } = await setup(t);
  const session = await context.newCDPSession(page);
  await open(page, server);
  await submit(page, tags(0, 5));
  await settle(page);
  const origin = new URL(site.url).origin;
  await session.send("Storage.overrideQuotaForOrigin", { origin, quotaSize: 1 << 20 });
  // The journal asks now and then how much room there is.
  await page.waitForTimeout(1100);
  await submit(page, ["asks"]);
  await settle(page);
  await page.waitForFunction(async () => {
    window.till.submit("no room");
    return (await window.till.settle())[0]!.includes("has room for");
  });
  await session.send("Storage.overrideQuotaForOrigin", { origin });
  await page.waitForFunction(async () => {
    window.till.submit("room again");
    return (await window.till.settle())[0]!.includes("committed");
  }, undefined, { polling: 500 });
  assert.deepEqual(payloads(ledger.address).filter((p) => p !== "no room"), [...tags(0, 5), "asks", "room again"]);
});

browser("a journal that the browser has deleted is found out, and not taken for a new one", async (t) => {
  const { ledger, server, context, page } = await setup(t);
  await open(page, server);
  await submit(page, tags(0, 5));
  await settle(page);
  const session = await context.newCDPSession(page);
  const origin = new URL(site.url).origin;
  await session.send("Storage.clearDataForOrigin", { origin, storageTypes: "indexeddb" });
  await submit(page, ["late"]);
  const [outcome] = await settle(page);
  assert.doesNotMatch(outcome!, /committed/);
  once(ledger, tags(0, 5));
});

browser("a service worker sends what a closed page has left behind", async (t) => {
  const { ledger, server, context, page } = await setup(t);
  const all = tags(0, 50);
  const session = await context.newCDPSession(page);
  const registered = new Promise<string>((resolve) => {
    session.on("ServiceWorker.workerVersionUpdated", ({ versions }) => {
      const active = versions.find((v) => v.status === "activated");
      if (active !== undefined) resolve(active.registrationId);
    });
  });
  await session.send("ServiceWorker.enable");
  await page.evaluate(async (server) => {
    await navigator.serviceWorker.register(`/serviceworker.js?ledger=${server}`, { type: "module" });
  }, server);
  const registrationId = await registered;
  await open(page, server);
  await ledger.kill();
  await submit(page, all);
  // Their numbers are on disk once the page has tried to send them.
  await page.evaluate(() => window.till.stored());
  const restarted = await Ledger.start(ledger.data, ledger.address, "--cors-origin", new URL(site.url).origin);
  t.after(() => restarted.kill());
  const other = await context.newPage();
  await other.goto(`${site.url}empty`);
  const debug = await context.newCDPSession(other);
  await debug.send("ServiceWorker.enable");
  await page.close();
  const origin = new URL(site.url).origin;
  const sync = { origin, registrationId, tag: "till", lastChance: false };
  await debug.send("ServiceWorker.dispatchSyncEvent", sync);
  while (payloads(restarted.address).length < all.length) {
    await other.waitForTimeout(200);
  }
  once(restarted, all);
  // The page finds the outcomes in its journal.
  const again = await context.newPage();
  await visit(again);
  const recovered = await open(again, server, true);
  assert.deepEqual(recovered, all);
  for (const outcome of await settle(again)) assert.match(outcome, / committed$/);
  once(restarted, all);
});

browser("a page settles hundreds of writes a second", async (t) => {
  const { server, page } = await setup(t);
  await open(page, server);
  const rate = await page.evaluate(() => window.till.load(2000, 64));
  t.diagnostic(`${Math.round(rate)} writes/s settled, 64 outstanding`);
  assert.ok(rate > 0);
});
