// What the console shows live: refused writes, plots, and a scope that is followed.

import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import assert from "node:assert/strict";
import type { Locator, Page, Route } from "playwright-core";
import {
  ListBlocksRequestSchema, ListBlocksResponseSchema, WatchRequestSchema,
} from "../../src/gen/seqledger/v1/ledger_pb.js";
import { append, createClient, setEntity, type Writer } from "../../src/index.js";
import { Ledger, startLedger } from "../support.js";
import { browser, fill, look, open, press, scope, visit } from "./console.js";

const refusalsOf = (page: Page): Locator =>
  page.getByRole("region", { name: /^The writes that this node has refused last/ });

/** The rows of the table of refusals without their times. */
const rowsOf = async (page: Page): Promise<string[][]> =>
  (await refusalsOf(page).locator("tbody tr").allInnerTexts()).map((row) => row.split("\t").slice(1));

browser("refused writes are listed as they come, with their clients and what these should do", async (t) => {
  const ledger = await startLedger(t);
  await using client = createClient({ baseUrl: `http://${ledger.address}`, webSocket: false });
  const writer = await client.openWriter({ scope, clientId: "till-7" });
  const { page, complaints } = await open(t, ledger.address);
  await page.getByText("No write was refused since").waitFor();
  assert.equal(await refusalsOf(page).count(), 0);
  await assert.rejects(writer.write([setEntity("secret", "1", { condition: { mustExist: true } })]));
  await refusalsOf(page).getByText("KEY_NOT_FOUND").waitFor();
  await writer.write([setEntity("secret", "1")]);
  await assert.rejects(writer.write([setEntity("secret", "hidden", { condition: { notExists: true } })]));
  await refusalsOf(page).getByText("KEY_EXISTS").waitFor();
  const advice = "read again and decide; the number is still free";
  const rows = [
    ["KEY_EXISTS", "WriteBatch", "acme/main", "till-7", "2", "the entity exists", advice],
    ["KEY_NOT_FOUND", "WriteBatch", "acme/main", "till-7", "1", "the entity does not exist", advice],
  ];
  assert.deepEqual(await rowsOf(page), rows);
  // A page that is opened later shows them, too, without any of the contents of the writes.
  await page.reload();
  await refusalsOf(page).getByText("KEY_NOT_FOUND").waitFor();
  assert.deepEqual(await rowsOf(page), rows);
  assert.doesNotMatch(await page.innerText("body"), /secret|hidden/);
  await look(page, "refused");
  assert.deepEqual(complaints, []);

  // A restarted server has none, and counts from zero.
  const restarted = await ledger.restart();
  t.after(() => restarted.kill());
  await refusalsOf(page).waitFor({ state: "detached" });
  await using again = createClient({ baseUrl: `http://${ledger.address}`, webSocket: false });
  const other = await again.openWriter({ scope, clientId: "till-8" });
  await assert.rejects(other.write([setEntity("secret", "1", { condition: { notExists: true } })]));
  await refusalsOf(page).getByText("till-8").waitFor();
  assert.deepEqual((await rowsOf(page)).map((row) => row[3]), ["till-8"]);
});

browser("plots show writes, how long they take, the disk, and a line for each reason to refuse", async (t) => {
  const ledger = await startLedger(t);
  await using client = createClient({ baseUrl: `http://${ledger.address}` });
  const writer = await client.openWriter({ scope, clientId: "till-7" });
  await writer.write([setEntity("a", "1")]);
  const { page, complaints } = await open(t, ledger.address);
  const plot = (name: RegExp): Locator => page.getByRole("img", { name });
  await plot(/^disk free: [1-9][\d.]* [KMGT]iB$/).waitFor();
  let going = true;
  const load = (async () => {
    while (going) {
      await writer.write([append("x")]);
      await writer.write([setEntity("a", "1", { condition: { notExists: true } })]).catch(() => {});
      await writer.write([setEntity("b", "1", { condition: { mustExist: true } })]).catch(() => {});
    }
  })();
  await plot(/^writes a second: [1-9]/).waitFor();
  for (const name of ["write p50", "write p99", "log write p99"]) {
    await plot(new RegExp(`^${name}: [\\d.]+ (µs|ms|s)$`)).waitFor();
  }
  await plot(/^refused a second: [1-9]/).waitFor();
  const refused = page.locator("figure", { hasText: "refused a second" });
  await refused.locator(".legend li").nth(1).waitFor();
  const reasons = (await refused.locator(".legend li").allInnerTexts()).map((text) => text.trim().split(" ")[0]);
  assert.deepEqual(reasons.sort(), ["KEY_EXISTS", "KEY_NOT_FOUND"]);
  assert.equal(await refused.locator("svg[role=img] path").count(), 2, "a line for each");
  await look(page, "plots");
  going = false;
  await load;
  assert.deepEqual(complaints, []);
});

/** Follows the scope of the other tests. */
async function follow(page: Page): Promise<void> {
  await visit(page, "Follow");
  await fill(page, "Scope", "acme/main");
  await press(page, "Follow");
}

// A page that draws within this time is not frozen. On a busy machine it may occasionally take longer; a page that
// freezes does so every time.
const frozenMs = 2000;
const attempts = 3;

/** Lets a Writer write as fast as it can, and returns the longest time during which the page did not draw. */
async function busy(page: Page, writer: Writer, name: string, wanted: number): Promise<number> {
  await page.evaluate(() => {
    const drawn = { last: performance.now(), longest: 0 };
    Object.assign(globalThis, { drawn });
    const frame = (now: number): void => {
      if ((globalThis as unknown as { drawn: object }).drawn !== drawn) return;
      drawn.longest = Math.max(drawn.longest, now - drawn.last);
      drawn.last = now;
      requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  });
  for (let n = 0; n < wanted; n += 50) {
    const batch = Array.from({ length: 50 }, (_, i) => writer.submit([append(`${name} ${n + i}`)]));
    await Promise.all(batch.map((p) => p.settled));
  }
  await page.getByText(`append ${name} ${wanted - 1}`, { exact: true }).waitFor();
  return page.evaluate(() => (globalThis as unknown as { drawn: { longest: number } }).drawn.longest);
}

browser("a busy scope does not freeze the page that follows it", async (t) => {
  const ledger = await startLedger(t);
  const { page } = await open(t, ledger.address);
  await using client = createClient({ baseUrl: `http://${ledger.address}` });
  const writer = await client.openWriter({ scope, clientId: "busy" });
  await writer.write([append("first")]);
  await follow(page);
  await page.getByText("append first").waitFor();
  const wanted = 5000;
  const longest: number[] = [];
  do {
    const began = performance.now();
    longest.push(await busy(page, writer, `attempt ${longest.length}:`, wanted));
    const rate = Math.round(wanted / ((performance.now() - began) / 1000));
    t.diagnostic(`${rate} writes/s shown as they come; ${Math.round(longest.at(-1)!)} ms without drawing at most`);
  } while (longest.at(-1)! > frozenMs && longest.length < attempts);
  assert.ok(Math.min(...longest) <= frozenMs, `the page did not draw for ${longest} ms`);
  // It has seen each write, keeps no more than its limit, and can still navigate to another page.
  await page.getByText(`${longest.length * wanted + 1} transactions since`).waitFor();
  assert.equal(await page.locator("tbody tr").count(), 200);
  await visit(page, "Overview");
  await page.getByText("Takes writes.").waitFor();
});

browser("a scope is followed from its last block on, which is found with a few calls", async (t) => {
  const ledger = await startLedger(t);
  await using client = createClient({ baseUrl: `http://${ledger.address}` });
  const writer = await client.openWriter({ scope, clientId: "till" });
  for (let i = 1; i <= 60; i++) await writer.write([append(`sale ${i}`)]);
  const { page, complaints } = await open(t, ledger.address);
  let lists = 0;
  page.on("request", (r) => {
    if (r.url().endsWith("/ListBlocks")) lists++;
  });
  await follow(page);
  await page.getByText("append sale 60", { exact: true }).waitFor();
  assert.equal(await page.locator("tbody tr").count(), 1);
  assert.ok(lists <= 14, `${lists} calls`);
  await writer.write([append("sale 61")]);
  await page.getByText("append sale 61", { exact: true }).waitFor();
  assert.equal(await page.locator("tbody tr").count(), 2);
  assert.equal(await page.getByRole("alert").count(), 0);
  await ledger.kill();
  await page.getByRole("alert").getByText("The server does not answer.").waitFor();
  const restarted = await Ledger.start(ledger.data, ledger.address);
  t.after(() => restarted.kill());
  await page.waitForFunction(() => document.querySelector("[role=alert]") === null);

  // Only the end of a long chain is read; here a scripted server provides it.
  let before = -1n; // where the page followed before: it may ask once more until it is gone
  for (const height of [10_000_000n, 1n, 0n]) {
    lists = 0;
    const from = height === 0n ? 1n : height;
    let watched: bigint | undefined;
    await page.route("**/ListBlocks", (route: Route) => {
      const { fromHeight } = fromBinary(ListBlocksRequestSchema, route.request().postDataBuffer() ?? new Uint8Array());
      const blocks = fromHeight <= height ? [{ header: { height: fromHeight } }] : [];
      const body = Buffer.from(toBinary(ListBlocksResponseSchema, create(ListBlocksResponseSchema, { blocks })));
      return route.fulfill({ contentType: "application/proto", body });
    });
    const asked = new Promise<void>((resolve) => {
      void page.route("**/Watch", (route: Route) => {
        const request = fromBinary(WatchRequestSchema, route.request().postDataBuffer()!.subarray(5));
        if (request.fromHeight !== before || before === from) {
          watched ??= request.fromHeight;
          resolve();
        }
        return route.abort();
      });
    });
    await follow(page);
    await asked;
    assert.equal(watched, from);
    before = from;
    assert.ok(lists <= 50, `${lists} calls for ${height} blocks`);
    await page.unrouteAll();
  }
  assert.deepEqual(complaints.filter((c) => !c.includes("Failed to load resource")), []);
});
