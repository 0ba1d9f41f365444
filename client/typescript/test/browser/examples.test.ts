// The example pages, used in Chromium as a person would use them. The service worker's test is in browser.test.ts, the
// Node worker's in ../examples.test.ts.

import assert from "node:assert/strict";
import { after, before, test, type TestContext } from "node:test";
import type { Page } from "playwright-core";
import { Ledger, payloads, temporary } from "../support.js";
import { launchFor, missing, servePage } from "./chromium.js";

let site: Awaited<ReturnType<typeof servePage>>;
before(async () => {
  if (missing === false) site = await servePage();
});
after(() => site?.server.close());

const browser = (name: string, run: (t: TestContext) => Promise<void>): void =>
  void test(name, { skip: missing === false ? false : missing }, run);

/** Starts a ledger, and opens an example that writes to it. */
async function setup(t: TestContext, example: string): Promise<{ ledger: Ledger; page: Page; complaints: string[] }> {
  const ledger = await Ledger.start(temporary(t), "127.0.0.1:0", ...cors());
  t.after(() => ledger.kill());
  const context = await launchFor(t);
  const page = context.pages()[0] ?? (await context.newPage());
  const complaints: string[] = [];
  page.on("pageerror", (e) => complaints.push(String(e)));
  await page.goto(`${site.url}${example}?ledger=http://${ledger.address}`);
  return { ledger, page, complaints };
}

const cors = (): string[] => ["--cors-origin", new URL(site.url).origin];

/** Waits until the page has n matching lines, and returns them. */
async function lines(page: Page, n: number, text: RegExp): Promise<string[]> {
  await page.waitForFunction(([n, text]) => {
    const found = [...document.querySelectorAll("li")].filter((li) => new RegExp(text!).test(li.textContent!));
    return found.length === Number(n);
  }, [String(n), text.source]);
  return page.locator("li").allInnerTexts();
}

async function enter(page: Page, article: string): Promise<void> {
  await page.getByLabel("Article").fill(article);
  await page.getByRole("button").click();
}

browser("the till sells once what is sold while the server is away and the page is reloaded", async (t) => {
  const { ledger, page, complaints } = await setup(t, "till.html");
  await page.getByText(/^Open/).waitFor();
  await enter(page, "apple");
  await lines(page, 1, /^apple .*: sold, number 1$/);
  await ledger.kill();
  await enter(page, "bread");
  await enter(page, "cake");
  await lines(page, 2, /: on its way$/);
  const restarted = await Ledger.start(ledger.data, ledger.address, ...cors());
  t.after(() => restarted.kill());
  await page.reload();
  await lines(page, 2, /: sold, number [23]$/);
  await enter(page, "dates");
  await lines(page, 1, /^dates .*: sold, number 4$/);
  assert.deepEqual(payloads(restarted.address), ["apple", "bread", "cake", "dates"]);
  assert.deepEqual(complaints, []);
});

browser("the till says why it is closed", async (t) => {
  const { page, ledger } = await setup(t, "till.html");
  await page.getByText(/^Open/).waitFor();
  await page.goto(`${site.url}till.html?ledger=ftp://${ledger.address}`);
  await page.getByText(/^Not open: TypeError/).waitFor();
});

browser("the React example orders once, in strict mode and after a reload", async (t) => {
  const { ledger, page, complaints } = await setup(t, "react.html");
  await page.locator("button:enabled").waitFor();
  await enter(page, "chair");
  await lines(page, 1, /^chair: ordered$/);
  await enter(page, "chair");
  await lines(page, 1, /^chair: JournalError/); // the journal knows the order, so it is not made twice
  await ledger.kill();
  await enter(page, "table");
  await lines(page, 1, /^table: on its way$/);
  const restarted = await Ledger.start(ledger.data, ledger.address, ...cors());
  t.after(() => restarted.kill());
  await page.reload();
  await lines(page, 1, /^table: ordered$/);
  assert.deepEqual(payloads(restarted.address, "shop"), ["chair", "table"]);
  assert.deepEqual(complaints, []);
});
