// The console of a real server, in Chromium: every page, with a screenshot where SCREENSHOTS names a
// directory, and without anything that axe finds.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { test, type TestContext } from "node:test";
import { setTimeout } from "node:timers/promises";
import { createClient as connectClient } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-web";
import type { BrowserContext, Locator, Page } from "playwright-core";
import { IdempotencyService, LeaseExpiry, RecordOutcome } from "../../src/gen/seqledger/v1/idempotency_pb.js";
import { append, createClient, setEntity } from "../../src/index.js";
import { Ledger, run, startLedger, temporary } from "../support.js";
import { launchFor, missing } from "./chromium.js";

const axe = createRequire(import.meta.url).resolve("axe-core/axe.min.js");
const scope = { organization: "acme", vault: "main" };

/** Opens the console, and collects what the browser complains about and whom it calls. */
async function open(
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

/** Checks a page that is in its place, and keeps a picture of it. */
async function look(page: Page, name: string): Promise<void> {
  const directory = process.env["SCREENSHOTS"];
  if (directory !== undefined) await page.screenshot({ path: join(directory, `${name}.png`), fullPage: true });
  // The page's policy allows no scripts of others, the debugger's connection is not bound by it.
  const session = await page.context().newCDPSession(page);
  await session.send("Runtime.evaluate", { expression: readFileSync(axe, "utf8") });
  const { result } = await session.send("Runtime.evaluate", {
    expression: "axe.run().then((r) => JSON.stringify(r.violations.map((v) => [v.id, v.nodes.map((n) => n.html)])))",
    awaitPromise: true, returnByValue: true,
  });
  await session.detach();
  assert.deepEqual(JSON.parse(result.value as string), [], name);
}

const visit = (page: Page, name: string): Promise<void> =>
  page.getByRole("navigation").getByRole("link", { name, exact: true }).click();
const fill = (page: Page, label: string, value: string): Promise<void> =>
  page.getByLabel(label, { exact: true }).first().fill(value);
const press = (page: Page, name: string): Promise<void> =>
  page.getByRole("main").getByRole("button", { name, exact: true }).first().click();

/** Writes what the pages show, and returns a transaction that is not alone in its block. */
async function written(ledger: Ledger): Promise<string> {
  await using client = createClient({ baseUrl: `http://${ledger.address}` });
  const writer = await client.openWriter({ scope, clientId: "till-7" });
  const pendings = Array.from({ length: 30 }, (_, i) => writer.submit([append(`sale ${i}`)]));
  await Promise.all(pendings.map((p) => p.settled));
  await writer.write([setEntity("balance/42", "100")]);
  await writer.write([setEntity("balance/42", "1", { condition: { notExists: true } })]).catch(() => {});
  return (await pendings[20]!.settled).txId;
}

const browser = (name: string, run: (t: TestContext) => Promise<void>): void =>
  void test(name, { skip: missing === false ? false : missing }, run);

browser("every page of the console does its work, and axe finds nothing", async (t) => {
  const ledger = await startLedger(t);
  const txId = await written(ledger);
  const { page, complaints, hosts } = await open(t, ledger.address);
  await page.waitForURL("**/console/");

  await page.getByText("Takes writes.").waitFor();
  await page.getByText("read again and decide").waitFor();
  await page.getByRole("img", { name: /^writes a second: \d/ }).waitFor();
  await page.waitForResponse((r) => r.url().endsWith("/GetCluster") && r.ok());
  await page.getByText("Takes writes.").waitFor();
  assert.equal(await page.getByText(/Nodes of the cluster|behind/).count(), 0, "a node that is alone has no others");
  await look(page, "overview");

  await visit(page, "Streams");
  await press(page, "List");
  await page.getByRole("button", { name: "till-7" }).click();
  await press(page, "Find");
  await page.getByText("The 31 receipts in the window").waitFor();
  await look(page, "streams");

  await visit(page, "Transaction");
  await fill(page, "Transaction id", txId);
  await press(page, "Find");
  await page.getByText("This page has computed the hashes below").waitFor();
  await page.getByText("append sale 20").waitFor();
  const hash = (await page.locator(".proof li").last().locator("code").innerText()).trim();
  await fill(page, "Block hash that you know from elsewhere", hash.replace(/.$/, (c) => (c === "0" ? "1" : "0")));
  await page.getByText("It is another hash.").waitFor();
  await fill(page, "Block hash that you know from elsewhere", hash);
  await page.getByText("It is the hash of this block").waitFor();
  await look(page, "transaction");
  await page.getByText("Find by client id and sequence").click();
  await fill(page, "Scope", "acme/main");
  await fill(page, "Client id", "till-7");
  await fill(page, "Sequence", "31");
  await page.getByRole("button", { name: "Find" }).nth(1).click();
  await page.getByText("set balance/42 = 100").waitFor();

  await visit(page, "Blocks");
  await fill(page, "Scope", "acme/main");
  await press(page, "List");
  await page.getByRole("button", { name: "1", exact: true }).click();
  await page.getByText("append sale 0", { exact: true }).waitFor();
  await look(page, "blocks");
  // The hash of the block is the one that the command line says.
  const block = JSON.parse(run("block", "1", "--server", ledger.address, "--scope", "acme/main", "--json"));
  const shown = await page.locator("td code").first().innerText();
  assert.equal(Buffer.from(block.hash, "base64").toString("hex"), shown);

  await visit(page, "Entities");
  await fill(page, "Scope", "acme/main");
  await press(page, "List");
  await page.getByText("balance/42").waitFor();
  await look(page, "entities");

  await visit(page, "Follow");
  await fill(page, "Scope", "acme/main");
  await press(page, "Follow");
  await page.getByText("set balance/42 = 100").waitFor();
  run("write", "--server", ledger.address, "--scope", "acme/main", "--client-id", "late", "--append", "as it comes");
  await page.getByText("append as it comes").waitFor();
  await look(page, "follow");

  await visit(page, "Reservations");
  await fill(page, "Scope", "acme/main");
  await press(page, "List");
  await page.getByText("0 records").waitFor();
  await look(page, "reservations");

  await visit(page, "Try it");
  await press(page, "Write, lose the answer, write again");
  await page.getByText("marked as replayed").waitFor();
  await page.getByText("The stream has 1 committed write.").waitFor();
  await look(page, "try");

  assert.deepEqual([...hosts], [ledger.address]);
  assert.deepEqual(complaints, []);
});

/** Starts three nodes, and returns them when all vote. The first leads. */
async function startCluster(t: TestContext): Promise<Ledger[]> {
  const alone = ["--peer-listen", "127.0.0.1:0"];
  const first = await startLedger(t, ...alone);
  const members = (): { id: string; voter?: boolean; peerAddress?: string }[] =>
    JSON.parse(run("cluster", "status", "--server", first.address, "--json")).members;
  // Its address is in the log a moment after it takes calls.
  let peer: string | undefined;
  while ((peer = members()[0]!.peerAddress) === undefined) await setTimeout(50);
  const joined = ["--join", peer];
  const nodes = [first, await startLedger(t, ...alone, ...joined), await startLedger(t, ...alone, ...joined)];
  while (members().filter((m) => m.voter).length < nodes.length) await setTimeout(50);
  return nodes;
}

browser("the nodes of a cluster are shown, with who is away and how far behind", async (t) => {
  const [first, second, third] = await startCluster(t);
  // The page of any node shows what the leader knows.
  const { page, complaints, hosts } = await open(t, second!.address);
  // Which one leads is not the test's business: on a busy machine there may be an election at any time.
  const table = page.getByRole("region", { name: /^Nodes of the cluster; node \d leads \(term \d+\)$/ });
  await table.waitFor();
  const row = async (i: number): Promise<string[]> => (await table.locator("tbody tr").nth(i).innerText()).split("\t");
  const rows = await Promise.all([0, 1, 2].map(row));
  assert.deepEqual(rows.map((r) => [r[0], r[5]]), [["1", first!.address], ["2", second!.address], ["3", third!.address]]);
  assert.deepEqual(rows.map((r) => r[1]).sort(), ["leader", "voter", "voter"]);
  await table.getByText("alive").nth(2).waitFor();
  await page.getByRole("img", { name: /^node \d behind: 0/ }).nth(1).waitFor();
  assert.equal(await page.getByRole("img", { name: /^node \d behind/ }).count(), 2, "a leader is not behind itself");
  await look(page, "cluster");

  await third!.kill();
  const gone = table.locator("tbody tr").nth(2);
  await gone.getByText("away").waitFor();
  assert.deepEqual((await row(2)).slice(0, 2), ["3", "voter"]);
  await using client = createClient({ baseUrl: `http://${second!.address}` });
  const writer = await client.openWriter({ scope, clientId: "till-7" });
  await writer.write([append("without node 3")]);
  await page.getByRole("img", { name: /^node 3 behind: [1-9]/ }).waitFor();
  await look(page, "cluster-away");
  assert.deepEqual(complaints, []);

  // Without a majority nobody knows more than the names.
  await first!.kill();
  await page.getByText("No node leads: an election goes on, or most voters are away.").waitFor();
  const rest = page.getByRole("region", { name: /^Nodes of the cluster \(term \d+\)$/ });
  assert.equal(await rest.getByText("unknown").count(), 6, "the state of three nodes, and how far they are behind");
  await look(page, "cluster-without-leader");
  assert.deepEqual([...hosts], [second!.address]);
});

/** Goes to something from the top of the page by the Tab key alone, as which it must be shown. */
async function tabTo(page: Page, target: Locator): Promise<void> {
  await target.waitFor({ state: "attached" });
  const elements = 'a[href], button, input, select, textarea, summary, [tabindex="0"]';
  const most = await page.locator(elements).count();
  // Behind the last element the focus is the browser's, which keeps it.
  await page.locator(".skip").focus();
  for (let presses = 0; presses < most; presses++) {
    if (await target.evaluate((e) => e === document.activeElement)) {
      assert.equal(await target.evaluate((e) => getComputedStyle(e).outlineStyle), "solid", "the focus is seen");
      return;
    }
    await page.keyboard.press("Tab");
  }
  assert.fail(`the Tab key does not lead to ${target}`);
}

browser("all of it can be done with the keyboard", async (t) => {
  const ledger = await startLedger(t);
  await written(ledger);
  const baseUrl = `http://${ledger.address}`;
  const records = connectClient(IdempotencyService, createConnectTransport({ baseUrl, useBinaryFormat: true }));
  await records.reserve({
    record: { scope, namespace: "payments", key: "order-4711" },
    fingerprint: { algorithm: 1, digest: new Uint8Array(32) }, attemptId: crypto.getRandomValues(new Uint8Array(16)),
    lease: { seconds: 1n }, onLeaseExpired: LeaseExpiry.INDETERMINATE,
  });
  const { page, complaints } = await open(t, ledger.address);
  const keys = page.keyboard;
  const main = page.getByRole("main");
  const go = async (target: Locator, key = "Enter"): Promise<void> => {
    await tabTo(page, target);
    await keys.press(key);
  };
  const button = (name: string): Locator => main.getByRole("button", { name, exact: true }).first();
  const type = async (label: string, text: string): Promise<void> => {
    await tabTo(page, main.getByLabel(label, { exact: true }).first());
    await keys.press("Control+A");
    await keys.type(text);
  };
  await page.getByText("Takes writes.").waitFor();
  await go(page.getByRole("link", { name: "To the page" }));
  assert.equal(await page.evaluate(() => document.activeElement?.id), "page", "past the pages' names");

  const visit = async (name: string): Promise<void> => {
    await go(page.getByRole("navigation").getByRole("link", { name, exact: true }));
    await page.waitForFunction((title) => document.title === title, `${name} – seqledger`);
  };
  await visit("Streams");
  await go(button("List"));
  await go(button("till-7"));
  await go(button("Find"));
  await page.getByText("The 31 receipts in the window").waitFor();
  await visit("Blocks");
  await type("Scope", "acme/main");
  await keys.press("Enter"); // a form is sent by any of its fields
  await go(button("1"));
  const transaction = main.getByRole("link").first();
  await page.getByText("append sale 0", { exact: true }).waitFor();
  await go(transaction);
  await page.getByText("This page has computed the hashes below").waitFor();
  for (const [name, shown] of [["Entities", "balance/42"], ["Follow", "set balance/42 = 100"]] as const) {
    await visit(name);
    await type("Scope", "acme/main");
    await go(button(name === "Follow" ? "Follow" : "List"));
    await page.getByText(shown).waitFor();
  }
  await visit("Reservations");
  await type("Scope", "acme/main");
  // The lease ends without a result in a while.
  do await go(button("List"));
  while (!(await main.innerText()).includes("INDETERMINATE"));
  await go(button("choose"));
  await type("Key", "order-4711");
  await type("Response", "it was paid");
  await go(main.getByLabel("The work was done"), "Space");
  await go(button("Settle"));
  await page.getByRole("region", { name: "Settle an outcome" }).getByText("OK", { exact: true }).waitFor();
  await visit("Try it");
  await type("Text", "by hand");
  await go(button("Write, lose the answer, write again"));
  await page.getByText("The stream has 1 committed write.").waitFor();
  await visit("Overview");
  assert.deepEqual(complaints, []);
});

browser("refused writes are listed as they come, with what their clients should do", async (t) => {
  const ledger = await startLedger(t);
  const { page, complaints } = await open(t, ledger.address);
  await page.getByText("No write was refused since").waitFor();
  await page.getByRole("img", { name: /^writes a second: \d/ }).waitFor();
  await using client = createClient({ baseUrl: `http://${ledger.address}`, webSocket: false });
  const writer = await client.openWriter({ scope, clientId: "till-7" });
  const late = page.getByRole("region", { name: /^Refused while this page is open/ });
  assert.equal(await late.count(), 0);
  await assert.rejects(writer.write([setEntity("a", "1", { condition: { mustExist: true } })]));
  await late.getByText("KEY_NOT_FOUND").waitFor();
  await writer.write([setEntity("a", "1")]);
  await assert.rejects(writer.write([setEntity("a", "1", { condition: { notExists: true } })]));
  await late.getByText("KEY_EXISTS").waitFor();
  const rows = (await late.locator("tbody tr").allInnerTexts()).map((row) => row.split("\t").slice(1));
  const advice = "read again and decide; the same sequence stays free";
  assert.deepEqual(rows, [["KEY_EXISTS", "WriteBatch", "1", advice], ["KEY_NOT_FOUND", "WriteBatch", "1", advice]]);
  await look(page, "refused");
  assert.deepEqual(complaints, []);
});

browser("a reservation whose owner is gone is chosen, settled, and waits no more", async (t) => {
  const ledger = await startLedger(t);
  const baseUrl = `http://${ledger.address}`;
  const records = connectClient(IdempotencyService, createConnectTransport({ baseUrl, useBinaryFormat: true }));
  const request = {
    record: { scope, namespace: "payments", key: "order-4711" },
    fingerprint: { algorithm: 1, digest: new Uint8Array(32) },
    lease: { seconds: 1n }, onLeaseExpired: LeaseExpiry.INDETERMINATE,
  };
  const reserve = () => records.reserve({ ...request, attemptId: crypto.getRandomValues(new Uint8Array(16)) });
  assert.equal((await reserve()).outcome, RecordOutcome.ACQUIRED);
  const { page, complaints } = await open(t, ledger.address);
  await visit(page, "Reservations");
  await fill(page, "Scope", "acme/main");
  // The lease ends without a result in a while.
  await page.waitForFunction(() => {
    if (document.body.innerText.includes("INDETERMINATE")) return true;
    document.querySelector<HTMLButtonElement>("main button")!.click();
    return false;
  }, undefined, { polling: 500 });
  await page.getByText("1 records").waitFor();
  await press(page, "choose");
  assert.equal(await page.getByLabel("Namespace", { exact: true }).inputValue(), "payments");
  await look(page, "settle");
  await fill(page, "Key", "order-4712");
  await press(page, "Settle");
  await page.getByText("NOT_FOUND").waitFor();
  await fill(page, "Key", "order-4711");
  await fill(page, "Response", "it was paid");
  await page.getByLabel("The work was done").check();
  await press(page, "Settle");
  await page.getByText("OK", { exact: true }).waitFor();
  await press(page, "List");
  await page.getByText("0 records").waitFor();
  const { outcome, record } = await reserve();
  assert.equal(outcome, RecordOutcome.REPLAY);
  assert.equal(new TextDecoder().decode(record!.response), "it was paid");
  assert.deepEqual(complaints, []);
});

browser("an API key is asked for, kept for the tab, and never in a URL", async (t) => {
  const directory = temporary(t);
  const file = join(directory, "auth.yaml");
  const newKey = (id: string, role: string): string => {
    const told = run("auth", "new-key", "--id", id, "--scope", "*", "--role", role, "--append", file);
    return /\b[A-Za-z0-9_-]{30,}\b/.exec(told)![0];
  };
  const secret = newKey("operator", "admin");
  const reader = newKey("reader", "reader");
  const ledger = await startLedger(t, "--auth", file);
  const { page } = await open(t, ledger.address);
  const urls: string[] = [];
  page.on("request", (r) => urls.push(r.url()));
  await page.getByText("give an API key above").first().waitFor();
  await look(page, "login");
  await fill(page, "API key", "nonsense");
  await page.getByRole("button", { name: "Use" }).click();
  await page.getByRole("banner").getByRole("alert").waitFor();
  await fill(page, "API key", secret);
  await page.getByRole("button", { name: "Use" }).click();
  await page.getByText("client:operator (admin)").waitFor();
  await page.reload();
  await page.getByText("client:operator (admin)").waitFor();
  await page.getByRole("button", { name: "Forget the key" }).click();
  await page.getByText("give an API key above").first().waitFor();
  assert.ok(urls.every((url) => !url.includes(secret)));

  // What a credential may not see is asked once, and not every second.
  await fill(page, "API key", reader);
  urls.length = 0;
  await page.getByRole("button", { name: "Use" }).click();
  await page.getByText("client:reader (").waitFor();
  for (let i = 0; i < 3; i++) await page.waitForResponse((r) => r.url().endsWith("/GetStatus"));
  assert.equal(urls.filter((url) => url.endsWith("/GetCluster")).length, 1);
});

browser("a console that cannot start says so, and one that loses its server goes on with it", async (t) => {
  const ledger = await startLedger(t);
  const { page } = await open(t, ledger.address);
  const scripts = /\/console\/.*\.js$/;
  await page.route(scripts, (route) => route.abort());
  await page.reload();
  await page.getByText("its program could not be loaded: load the page again").waitFor();
  await page.unroute(scripts);
  await page.reload();
  await page.getByText("Takes writes.").waitFor();
  assert.equal(await page.getByText("its program could not be loaded").count(), 0);

  await ledger.kill();
  await page.getByRole("alert").first().waitFor();
  await look(page, "unreachable");
  const restarted = await ledger.restart();
  t.after(() => restarted.kill());
  await page.waitForFunction(() => document.querySelector("[role=alert]") === null);
  await page.getByText("Takes writes.").waitFor();
});

browser("a telephone shows the console without sideways scrolling", async (t) => {
  const ledger = await startLedger(t);
  const { page } = await open(t, ledger.address);
  await page.setViewportSize({ width: 375, height: 700 });
  for (const name of ["Overview", "Streams", "Transaction", "Follow", "Try it"]) {
    await visit(page, name);
    const [inner, whole] = await page.evaluate(() => [innerWidth, document.documentElement.scrollWidth]);
    assert.ok(whole! <= inner!, `${name}: ${whole} of ${inner}`);
  }
  await page.emulateMedia({ colorScheme: "dark" });
  await look(page, "telephone-dark");
});

browser("a busy scope does not freeze the page that follows it", async (t) => {
  const ledger = await startLedger(t);
  const { page } = await open(t, ledger.address);
  await using client = createClient({ baseUrl: `http://${ledger.address}` });
  const writer = await client.openWriter({ scope, clientId: "busy" });
  await writer.write([append("first")]);
  await visit(page, "Follow");
  await fill(page, "Scope", "acme/main");
  await press(page, "Follow");
  await page.getByText("append first").waitFor();
  await page.evaluate(() => {
    const drawn = { last: performance.now(), longest: 0 };
    Object.assign(globalThis, { drawn });
    const frame = (now: number) => {
      drawn.longest = Math.max(drawn.longest, now - drawn.last);
      drawn.last = now;
      requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  });
  const wanted = 5000;
  const began = performance.now();
  for (let n = 0; n < wanted; n += 50) {
    const batch = Array.from({ length: 50 }, (_, i) => writer.submit([append(`busy ${n + i}`)]));
    await Promise.all(batch.map((p) => p.settled));
  }
  // It shows the newest, keeps no more than its bound, and goes elsewhere when told to.
  await page.getByText(`append busy ${wanted - 1}`, { exact: true }).waitFor();
  await page.getByText(`${wanted + 1} transactions since`).waitFor();
  const rate = Math.round(wanted / ((performance.now() - began) / 1000));
  const longest = await page.evaluate(() => (globalThis as unknown as { drawn: { longest: number } }).drawn.longest);
  t.diagnostic(`${rate} writes/s shown as they come; the longest that the page did not draw: ${Math.round(longest)} ms`);
  assert.equal(await page.locator("tbody tr").count(), 200);
  await visit(page, "Overview");
  await page.getByText("Takes writes.").waitFor();
});

browser("--no-console leaves it out", async (t) => {
  const ledger = await startLedger(t, "--no-console");
  for (const path of ["/", "/console/"]) {
    const answer = await fetch(`http://${ledger.address}${path}`, { redirect: "manual" });
    assert.equal(answer.status, 404, path);
  }
});
