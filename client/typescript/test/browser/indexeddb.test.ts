// What a browser may do to the database of a journal: it cuts the connection, other pages delete or upgrade the
// database, it has no space, or it deletes everything. The journal continues with what is on disk, or it stops and
// reports that; the ledger has every write once.

import assert from "node:assert/strict";
import type { BrowserContext, CDPSession, Page } from "playwright-core";
import { FaultProxy } from "../support.js";
import {
  browser, goOn, once, open, origin, position, settle, setup, submit, tags, visit,
} from "./till.js";

const database = "seqledger journal till";

/** Returns the function that cuts all connections to databases, as browsers do to background pages. */
async function scissors(context: BrowserContext): Promise<() => Promise<void>> {
  const internals = await context.newPage();
  await internals.goto("chrome://indexeddb-internals/");
  const button = internals.getByText("Force close", { exact: true });
  await button.waitFor();
  return () => button.click();
}

/** Keeps the next transaction open until its connection is cut. */
const standStill = (page: Page): Promise<void> =>
  page.evaluate(() => {
    const { commit } = IDBTransaction.prototype;
    Reflect.deleteProperty(window, "still");
    IDBTransaction.prototype.commit = function () {
      IDBTransaction.prototype.commit = commit;
      const store = this.objectStore("groups");
      // A transaction ends when it gets no requests.
      const ask = (): void => void (store.count().onsuccess = ask);
      ask();
      Object.assign(window, { still: true });
    };
  });

/** Opens the database as an unrelated page would, and keeps it open. */
async function hold(page: Page): Promise<void> {
  await page.evaluate((name) => new Promise<void>((resolve, reject) => {
    const request = indexedDB.open(name);
    request.onerror = () => reject(request.error);
    request.onsuccess = () => {
      Object.assign(window, { held: request.result });
      resolve();
    };
  }), database);
}

const letGo = (page: Page): Promise<void> =>
  page.evaluate(() => (window as unknown as { held: IDBDatabase }).held.close());

/** Deletes the database, and waits for the deletion unless another connection blocks it. */
const remove = (page: Page): Promise<"deleted" | "blocked"> =>
  page.evaluate((name) => new Promise((resolve) => {
    const request = indexedDB.deleteDatabase(name);
    request.onsuccess = () => resolve("deleted");
    request.onblocked = () => resolve("blocked");
  }), database);

/** Stores other data until the browser has no space for another byte. */
const fillUp = (page: Page): Promise<void> =>
  page.evaluate(async () => {
    const db = await new Promise<IDBDatabase>((resolve, reject) => {
      const request = indexedDB.open("something else");
      request.onupgradeneeded = () => request.result.createObjectStore("all", { autoIncrement: true });
      request.onsuccess = () => resolve(request.result);
      request.onerror = () => reject(request.error);
    });
    const fits = (bytes: number): Promise<boolean> => new Promise((resolve) => {
      const transaction = db.transaction("all", "readwrite");
      transaction.oncomplete = () => resolve(true);
      transaction.onabort = () => resolve(false);
      transaction.objectStore("all").add(new Uint8Array(bytes));
    });
    for (let bytes = 1 << 18; bytes >= 1; bytes >>= 1) while (await fits(bytes));
    db.close();
  });

const deleteAll = (session: CDPSession): Promise<unknown> =>
  session.send("Storage.clearDataForOrigin", { origin: origin(), storageTypes: "indexeddb" });

browser("a journal says whether the browser has promised to keep it", async (t) => {
  const { server, context, page } = await setup(t);
  await open(page, server);
  assert.equal(await page.evaluate(() => window.till.persistent()), false);
  const session = await context.newCDPSession(page);
  await session.send("Browser.grantPermissions", { permissions: ["durableStorage"], origin: origin() });
  await page.evaluate(() => window.till.close());
  await open(page, server);
  assert.equal(await page.evaluate(() => window.till.persistent()), true);
});

browser("a journal whose connection is cut opens it again, and goes on", async (t) => {
  const { ledger, server, context, page } = await setup(t);
  await open(page, server);
  const { session } = await position(page);
  const cut = await scissors(context);
  const rounds = 10;
  for (let i = 0; i < rounds; i++) {
    // In half of the rounds the cut comes in the middle of a transaction; in the others it may.
    if (i % 2 === 0) await standStill(page);
    await submit(page, tags(20 * i, 10));
    if (i % 2 === 0) await page.waitForFunction(() => "still" in window);
    await cut();
    await submit(page, tags(20 * i + 10, 10));
    for (const outcome of await settle(page)) assert.match(outcome, / committed$/);
  }
  assert.deepEqual(await position(page), { session, next: String(20 * rounds + 1), error: "" });
  once(ledger, tags(0, 20 * rounds));
});

browser("a journal goes on when the browser does not say how a transaction ended", async (t) => {
  const { ledger, server, context, page } = await setup(t);
  await open(page, server);
  const { session } = await position(page);
  const cut = await scissors(context);
  // Chromium reports nothing for a transaction that begins just as its connection is cut.
  await page.evaluate(() => {
    const { transaction } = IDBDatabase.prototype;
    IDBDatabase.prototype.transaction = function (...parameters) {
      const begun = transaction.apply(this, parameters);
      begun.addEventListener("abort", (event) => event.stopImmediatePropagation());
      return begun;
    };
  });
  await standStill(page);
  await submit(page, tags(0, 5));
  await page.waitForFunction(() => "still" in window);
  await cut();
  for (const outcome of await settle(page)) assert.match(outcome, / committed$/);
  assert.deepEqual(await position(page), { session, next: "6", error: "" });
  once(ledger, tags(0, 5));
});

browser("a journal whose connections are cut again and again stops in the end", async (t) => {
  const { ledger, server, page } = await setup(t);
  await open(page, server);
  await submit(page, tags(0, 5));
  await settle(page);
  // Each transaction finds that its connection was just closed.
  await page.evaluate(() => {
    const { transaction } = IDBDatabase.prototype;
    Object.assign(window, { cuts: 0 });
    IDBDatabase.prototype.transaction = function (...parameters) {
      (window as unknown as { cuts: number }).cuts++;
      this.close();
      return transaction.apply(this, parameters);
    };
  });
  await submit(page, ["late"]);
  assert.match((await settle(page))[0]!, /OutcomeUnknownError/);
  assert.match((await position(page)).error, /journal till failed: .*connection is closing/);
  assert.equal(await page.evaluate(() => (window as unknown as { cuts: number }).cuts), 3);
  once(ledger, tags(0, 5));
  await visit(page);
  await goOn(page, server, ["late"]);
  once(ledger, [...tags(0, 5), "late"]);
});

browser("a journal that cannot be opened again stops, and nothing goes out that is not on disk", async (t) => {
  const { ledger, server, context, page } = await setup(t);
  await open(page, server);
  await submit(page, tags(0, 5));
  await settle(page);
  const cut = await scissors(context);
  await page.evaluate(() => {
    // The error of WebKit in a page whose connection it has cut for good.
    IDBFactory.prototype.open = () => {
      throw new DOMException("Connection to Indexed Database server lost. Refresh the page to try again");
    };
  });
  await cut();
  await submit(page, tags(5, 5));
  for (const outcome of await settle(page)) assert.match(outcome, /OutcomeUnknownError/);
  assert.match((await position(page)).error, /journal till failed: Connection to Indexed Database server lost/);
  once(ledger, tags(0, 5));
  await visit(page);
  await goOn(page, server, tags(0, 10));
  once(ledger, tags(0, 10));
});

browser("a page that deletes the database is not held up, and the journal finds it out", async (t) => {
  const { ledger, server, context, page } = await setup(t);
  await open(page, server);
  await submit(page, tags(0, 5));
  await settle(page);
  const other = await context.newPage();
  await visit(other);
  assert.equal(await remove(other), "deleted");
  await submit(page, ["late"]);
  assert.match((await settle(page))[0]!, /OutcomeUnknownError/);
  assert.match((await position(page)).error, /not those that were stored: the browser has deleted them/);
  once(ledger, tags(0, 5));
});

browser("a newer version of the package is not held up, and the old page stops", async (t) => {
  const { ledger, server, context, page } = await setup(t);
  await open(page, server);
  await submit(page, tags(0, 5));
  await settle(page);
  const other = await context.newPage();
  await visit(other);
  const upgraded = await other.evaluate((name) => new Promise((resolve) => {
    const request = indexedDB.open(name, 2);
    request.onblocked = () => resolve("blocked");
    request.onsuccess = () => {
      request.result.close();
      resolve("upgraded");
    };
  }), database);
  assert.equal(upgraded, "upgraded");
  await submit(page, ["late"]);
  assert.match((await settle(page))[0]!, /OutcomeUnknownError/);
  assert.match((await position(page)).error, /that of a newer version of this program: load the page again/);
  once(ledger, tags(0, 5));
  await visit(page);
  await assert.rejects(open(page, server), /that of a newer version of this program/);
});

browser("a journal behind a page that is in the way says so after a time, or goes on without it", async (t) => {
  const { ledger, server, context, page } = await setup(t);
  await open(page, server);
  await submit(page, tags(0, 5));
  await settle(page);
  await page.evaluate(() => window.till.close());
  // A page without a handler for "versionchange" keeps its connection; the deletion waits for it, and all others wait
  // for the deletion.
  const other = await context.newPage();
  await visit(other);
  await hold(other);
  assert.equal(await remove(other), "blocked");
  const third = await context.newPage();
  await third.clock.install();
  await visit(third);
  const opened = open(third, server).then(() => "opened", String);
  // The clock is advanced once the page waits: the lock is taken just before it opens the database.
  await other.waitForFunction(async () => (await navigator.locks.query()).held?.length === 1);
  let told: string | undefined;
  void opened.then((text) => (told = text));
  while (told === undefined) await third.clock.fastForward(31_000);
  assert.match(told, /did not open within 30 seconds: another page holds it/);
  // A waiting page continues, with a deleted journal, when the other page has gone.
  const fourth = await context.newPage();
  await visit(fourth);
  const waiting = open(fourth, server);
  await letGo(other);
  assert.deepEqual(await waiting, []);
  await submit(fourth, tags(5, 5));
  for (const outcome of await settle(fourth)) assert.match(outcome, / committed$/);
  once(ledger, tags(0, 10));
  // The page that gave up does not keep a connection that arrived too late, either.
  await fourth.evaluate(() => window.till.close());
  assert.equal(await remove(fourth), "deleted");
});

browser("without room in the browser a write is refused, and its number used again", async (t) => {
  const { ledger, server, context, page } = await setup(t);
  const session = await context.newCDPSession(page);
  await session.send("Storage.overrideQuotaForOrigin", { origin: origin(), quotaSize: 1 << 20 });
  const stored: string[] = [];
  const none = /NotExecutedError.*(has room for|no room)/;
  // Some browsers report the available space before a write, and all refuse to store it.
  const probe = async (until: RegExp): Promise<void> => {
    for (let n = 0; ; n++) {
      const all = tags(1000 * n, 100).map((tag) => `${stored.length} ${tag}`);
      await submit(page, all);
      const outcomes = await settle(page);
      for (const [i, outcome] of outcomes.entries()) {
        if (outcome.endsWith("committed")) stored.push(all[i]!);
        else assert.match(outcome, none);
      }
      if (until.test(outcomes.at(-1)!)) return;
    }
  };
  await open(page, server);
  await probe(none);
  const before = await position(page);
  assert.deepEqual(before, { ...before, next: String(stored.length + 1), error: "" });
  const more = tags(0, 20);
  await submit(page, more);
  for (const [i, outcome] of (await settle(page)).entries()) {
    if (outcome.endsWith("committed")) stored.push(more[i]!);
    else assert.match(outcome, none);
  }
  assert.equal((await position(page)).next, String(stored.length + 1));
  once(ledger, stored);
  await session.send("Storage.overrideQuotaForOrigin", { origin: origin() });
  await probe(/committed$/);
  assert.deepEqual(await position(page), { ...before, next: String(stored.length + 1) });
  once(ledger, stored);
  // A page that is opened later finds nothing of what was refused.
  await visit(page);
  const recovered = await open(page, server);
  assert.deepEqual(recovered.filter((tag) => !stored.includes(tag)), []);
});

browser("without room in the browser, a refusal behind a lost answer waits, and the Writer goes on", async (t) => {
  const { ledger, context, page } = await setup(t);
  const session = await context.newCDPSession(page);
  await session.send("Storage.overrideQuotaForOrigin", { origin: origin(), quotaSize: 1 << 20 });
  const proxy = await FaultProxy.start(t, ledger.address);
  await open(page, `http://${proxy.address}`);
  await submit(page, tags(0, 3));
  await settle(page);
  const before = await position(page);
  await page.evaluate((name) => {
    const { transaction } = IDBDatabase.prototype;
    Object.assign(window, { refused: 0 });
    IDBDatabase.prototype.transaction = function (...parameters) {
      const begun = transaction.apply(this, parameters);
      const count = (): void => void (window as unknown as { refused: number }).refused++;
      if (this.name === name) begun.addEventListener("abort", count);
      return begun;
    };
  }, database);
  let lost = false;
  proxy.fault = async (procedure) => {
    if (lost || procedure !== "WriteBatch") return "none";
    lost = true;
    await fillUp(page);
    return "lose";
  };
  await page.evaluate(() => window.till.replace("stock", "late"));
  await page.waitForFunction(() => {
    return (window as unknown as { refused: number }).refused >= 3 || window.till.position().error !== "";
  });
  assert.deepEqual(await position(page), { ...before, next: "5" });
  await session.send("Storage.overrideQuotaForOrigin", { origin: origin() });
  assert.match((await settle(page))[0]!, /^late NotExecutedError: .*KEY_NOT_FOUND/);
  await page.evaluate(() => window.till.resume());
  await submit(page, ["next"]);
  assert.deepEqual(await settle(page), ["next committed"]);
  assert.equal((await position(page)).next, "5", "the number of the refused write is used again");
  once(ledger, [...tags(0, 3), "next"]);
});

browser("a journal that the browser deletes while it is open stops with its next write", async (t) => {
  const { ledger, server, context, page } = await setup(t);
  await open(page, server);
  await submit(page, tags(0, 5));
  await settle(page);
  await deleteAll(await context.newCDPSession(page));
  await submit(page, ["late"]);
  assert.match((await settle(page))[0]!, /OutcomeUnknownError/);
  assert.match((await position(page)).error, /the browser has deleted them/);
  once(ledger, tags(0, 5));
});

browser("a journal that was deleted while no page had it means a new session", async (t) => {
  const { ledger, server, context, page } = await setup(t);
  await open(page, server);
  await submit(page, tags(0, 5));
  await settle(page);
  const before = await position(page);
  await page.evaluate(() => window.till.close());
  await deleteAll(await context.newCDPSession(page));
  await visit(page);
  await assert.rejects(open(page, server, { mustExist: true }), /journal till is missing/);
  assert.deepEqual(await open(page, server), []);
  const after = await position(page);
  assert.ok(BigInt(after.session) > BigInt(before.session), `session ${after.session} after ${before.session}`);
  assert.equal(after.next, "6", "it goes on behind what the ledger has");
  await submit(page, tags(5, 5));
  for (const outcome of await settle(page)) assert.match(outcome, / committed$/);
  once(ledger, tags(0, 10));
});
