// The console's lists page by page, its messages about failed calls, and hand-typed addresses.

import assert from "node:assert/strict";
import { createClient as connectClient } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-web";
import type { Page } from "playwright-core";
import { LedgerService } from "../../src/gen/seqledger/v1/ledger_pb.js";
import { append, createClient } from "../../src/index.js";
import { type Ledger, startLedger } from "../support.js";
import { browser, fill, look, open, press, scope, visit } from "./console.js";

/** Writes 60 entities with 60 concurrent clients, and then 60 blocks. */
async function fillLedger(ledger: Ledger): Promise<void> {
  const baseUrl = `http://${ledger.address}`;
  const calls = connectClient(LedgerService, createConnectTransport({ baseUrl, useBinaryFormat: true }));
  const name = (i: number): string => String(i).padStart(2, "0");
  const { results } = await calls.writeBatch({ writes: Array.from({ length: 60 }, (_, i) => ({
    scope, clientId: `client-${name(i)}`, sequence: 1n,
    operations: [{ operation: { case: "setEntity" as const, value: { key: `key-${name(i)}`, value: new Uint8Array(1) } } }],
  })) });
  assert.ok(results.every((r) => r.result.case === "receipt"));
  await using client = createClient({ baseUrl });
  const writer = await client.openWriter({ scope: { organization: "acme", vault: "blocks" }, clientId: "till" });
  for (let i = 1; i <= 60; i++) await writer.write([append(`sale ${i}`)]);
}

/** The first cells of the visible rows. */
const firstCells = (page: Page): Promise<string[]> => page.locator("tbody tr td:first-child").allInnerTexts();
const numbers = (from: number, to: number): string[] =>
  Array.from({ length: to - from + 1 }, (_, i) => String(from + i));

browser("blocks, entities and streams are shown page by page", async (t) => {
  const ledger = await startLedger(t);
  await fillLedger(ledger);
  const { page, complaints } = await open(t, ledger.address);
  await visit(page, "Blocks");
  await fill(page, "Scope", "acme/blocks");
  await press(page, "List");
  await page.getByText("50 blocks").waitFor();
  assert.deepEqual(await firstCells(page), numbers(1, 50));
  assert.equal(await page.getByRole("button", { name: "Earlier" }).count(), 0);
  await press(page, "Later");
  await page.getByText("10 blocks").waitFor();
  assert.deepEqual(await firstCells(page), numbers(51, 60));
  assert.equal(await page.getByRole("button", { name: "Later" }).count(), 0);
  await page.getByRole("button", { name: "57", exact: true }).click();
  await page.getByText("append sale 57", { exact: true }).waitFor();
  await press(page, "Earlier");
  await page.getByText("50 blocks").waitFor();
  assert.deepEqual(await firstCells(page), numbers(1, 50));
  assert.equal(await page.getByText("append sale 57", { exact: true }).count(), 0, "a block of another page");
  await fill(page, "From height", "30");
  await press(page, "List");
  await page.getByText("31 blocks").waitFor();
  await press(page, "Earlier");
  await page.getByText("50 blocks").waitFor();
  await fill(page, "From height", "first");
  await press(page, "List");
  await page.getByRole("main").getByRole("alert").getByText('The height "first" is no whole number').waitFor();

  const names = (kind: string, from: number, to: number): string[] =>
    numbers(from, to).map((n) => `${kind}-${n.padStart(2, "0")}`);
  await visit(page, "Entities");
  await fill(page, "Scope", "acme/main");
  await press(page, "List");
  await page.getByText("50 entities").waitFor();
  assert.deepEqual(await firstCells(page), names("key", 0, 49));
  await press(page, "Next page");
  await page.getByText("10 entities").waitFor();
  assert.deepEqual(await firstCells(page), names("key", 50, 59));
  assert.equal(await page.getByRole("button", { name: "Next page" }).count(), 0);

  await visit(page, "Streams");
  await fill(page, "Scope", "acme/main");
  await press(page, "List");
  await page.getByText("50 streams").waitFor();
  await press(page, "Next page");
  await page.getByText("10 streams").waitFor();
  assert.deepEqual(await page.locator("tbody button").allInnerTexts(), names("client", 50, 59));
  assert.deepEqual(complaints, []);
});

browser("a call that fails is told where it was made", async (t) => {
  const ledger = await startLedger(t);
  await fillLedger(ledger);
  const { page, complaints } = await open(t, ledger.address);
  const errors = (): string[] => complaints.filter((c) => !c.includes("Failed to load resource"));
  await visit(page, "Blocks");
  await fill(page, "Scope", "acme/blocks");
  await press(page, "List");
  await page.getByText("50 blocks").waitFor();
  const fails = (call: string): Promise<unknown> => page.route(`**/${call}`, (route) => {
    const body = JSON.stringify({ code: "permission_denied", message: `no ${call}` });
    return route.fulfill({ status: 403, contentType: "application/json", body });
  });
  await fails("GetBlock");
  await page.getByRole("button", { name: "7", exact: true }).click();
  await page.getByRole("row", { name: /^7 / }).getByRole("alert").getByText("no GetBlock").waitFor();
  await look(page, "failed");
  await fails("ListBlocks");
  await press(page, "Later");
  await page.getByRole("main").getByRole("alert").getByText("no ListBlocks").waitFor();
  await visit(page, "Follow");
  await fill(page, "Scope", "acme/blocks");
  await press(page, "Follow");
  await page.getByRole("main").getByRole("alert").getByText("no ListBlocks").waitFor();
  await page.unrouteAll();
  await press(page, "Follow");
  await page.getByText("append sale 60", { exact: true }).waitFor();
  assert.deepEqual(errors(), []);
});

browser("an address that means nothing says so, and any address leaves a page", async (t) => {
  const ledger = await startLedger(t);
  const { page, complaints } = await open(t, ledger.address);
  await page.goto(`http://${ledger.address}/console/#/transaction/%zz`);
  await page.reload();
  await page.getByRole("main").getByRole("alert").getByText('the address ends in "%zz"').waitFor();
  await page.getByRole("heading", { name: "Transaction" }).waitFor();
  await page.goto(`http://${ledger.address}/console/#/nonsense/7`);
  await page.getByText('There is no page "nonsense".').waitFor();
  await visit(page, "Overview");
  await page.getByText("Takes writes.").waitFor();

  const seed = Number(process.env["SEED"] ?? Math.floor(Math.random() * 2 ** 31));
  t.diagnostic(`repeat with SEED=${seed}`);
  const blank = await page.evaluate(async (seed) => {
    let state = seed;
    const below = (n: number): number => {
      state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
      return Math.floor((state / 2 ** 32) * n);
    };
    const parts = ["#", "/", "%", "%zz", "%E0%A4", "%2F", "..", "transaction", "blocks", "overview", "try", "?", "&", " ",
      "\u0000", "\ud800", "é", "<b>", "'\"", "__proto__", "constructor", "-1", "9".repeat(400), "x".repeat(3000), ":"];
    const blank: string[] = [];
    for (let n = 0; n < 400; n++) {
      const hash = Array.from({ length: below(6) }, () => parts[below(parts.length)]).join("");
      location.hash = below(2) === 0 ? hash : `#/transaction/${hash}`;
      await new Promise((resolve) => setTimeout(resolve, 0));
      const main = document.querySelector("main");
      if (main === null || main.innerText.trim() === "" || document.title === "") blank.push(hash);
    }
    return blank;
  }, seed);
  assert.deepEqual(blank, []);
  assert.deepEqual(complaints.filter((c) => !c.includes("Failed to load resource")), []);
  await visit(page, "Overview");
  await page.getByText("Takes writes.").waitFor();
});
