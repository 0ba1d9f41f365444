// The console of a real server in Chromium: every page, with a screenshot if SCREENSHOTS names a directory, and without
// findings by axe.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import type { Locator, Page } from "playwright-core";
import { RecordOutcome } from "../../src/gen/seqledger/v1/idempotency_pb.js";
import { append, createClient } from "../../src/index.js";
import { type Ledger, run, startLedger, temporary } from "../support.js";
import {
  browser, fill, listIndeterminate, logIn, look, lookAll, newKey, open, press, reserve, scope, startCluster, visit,
  written,
} from "./console.js";

browser("every page of the console does its work, and axe finds nothing", async (t) => {
  const ledger = await startLedger(t);
  const txId = await written(ledger);
  await reserve(ledger);
  const { page, complaints, hosts } = await open(t, ledger.address);
  await page.waitForURL("**/console/");

  await page.getByText("Takes writes.").waitFor();
  await page.getByRole("img", { name: /^writes a second: \d/ }).waitFor();
  await page.getByRole("region", { name: /^The writes that this node has refused last/ }).waitFor();
  await page.waitForResponse((r) => r.url().endsWith("/GetCluster") && r.ok());
  await page.getByText("Takes writes.").waitFor();
  assert.equal(await page.getByText(/Nodes of the cluster|behind/).count(), 0, "a node that is alone has no others");
  await lookAll(page, "overview");

  await visit(page, "Streams");
  await press(page, "List");
  await page.getByRole("button", { name: "till-7" }).click();
  await press(page, "Find");
  await page.getByText("The 31 receipts in the window").waitFor();
  await lookAll(page, "streams");

  await findTransaction(page, txId);
  await lookBlocks(page, ledger);

  await visit(page, "Entities");
  await fill(page, "Scope", "acme/main");
  await press(page, "List");
  await page.getByText("balance/42").waitFor();
  await lookAll(page, "entities");

  await visit(page, "Follow");
  await fill(page, "Scope", "acme/main");
  await press(page, "Follow");
  await page.getByText("set balance/42 = 100").waitFor();
  run("write", "--server", ledger.address, "--scope", "acme/main", "--client-id", "late", "--append", "as it comes");
  await page.getByText("append as it comes").waitFor();
  await lookAll(page, "follow");

  await visit(page, "Reservations");
  await fill(page, "Scope", "acme/main");
  await listIndeterminate(page);
  await page.getByText("1 records").waitFor();
  await lookAll(page, "reservations");

  await verifyReceipts(page);

  await visit(page, "Try it");
  await press(page, "Write, lose the answer, write again");
  await page.getByText("marked as replayed").waitFor();
  await page.getByText("The stream has 1 committed write.").waitFor();
  await lookAll(page, "try");

  assert.deepEqual([...hosts], [ledger.address]);
  assert.deepEqual(complaints, []);
});

/** Finds a transaction by its id, compares its proof, and finds another one by its sequence. */
async function findTransaction(page: Page, txId: string): Promise<void> {
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
  await lookAll(page, "transaction");
  await page.getByText("Find by client id and sequence").click();
  await fill(page, "Scope", "acme/main");
  await fill(page, "Client id", "till-7");
  await fill(page, "Sequence", "31");
  await page.getByRole("button", { name: "Find" }).nth(1).click();
  await page.getByText("set balance/42 = 100").waitFor();
}

/** Pastes and drops receipts, of which one holds. No call is made. */
async function verifyReceipts(page: Page): Promise<void> {
  await visit(page, "Verify a receipt");
  const path = join(import.meta.dirname, ..."../../../../../ledger/receipt/testdata/vectors.json".split("/"));
  const vectors = JSON.parse(readFileSync(path, "utf8")) as { name: string; file: string; policy: string }[];
  const { file, policy } = vectors.find((v) => v.name === "cosigned")!;
  const calls: string[] = [];
  const called = (r: { url(): string }): void => void calls.push(r.url());
  page.on("request", called);
  await fill(page, "Receipt", file.replace("index 3", "index 2"));
  await fill(page, "Policy, or public key of the ledger", policy);
  await press(page, "Verify");
  await page.getByText("Do not rely on it: the block is not in the history").waitFor();
  await page.getByLabel("Receipt", { exact: true }).evaluate((e, text) => {
    const dataTransfer = new DataTransfer();
    dataTransfer.items.add(new File([text], "payment.tlog-proof"));
    e.dispatchEvent(new DragEvent("drop", { dataTransfer, bubbles: true, cancelable: true }));
  }, file);
  await page.waitForFunction(() => document.querySelector("textarea")?.value.includes("index 3"));
  await press(page, "Verify");
  await page.getByText("The receipt holds.").waitFor();
  await page.getByText("a at 2027-01-15 08:00:00.000, b at").waitFor();
  await lookAll(page, "verify");
  const buffer = Buffer.from("hi");
  await page.locator("input[type=file]").setInputFiles({ name: "payload", mimeType: "text/plain", buffer });
  await page.getByText("The receipt holds").waitFor({ state: "detached" }); // which was of other inputs
  await press(page, "Verify");
  await page.getByText("Do not rely on it: the transaction has other operations").waitFor();
  assert.deepEqual(calls, []);
  page.off("request", called);
}

/** Shows a block, whose hash must be the one that the command line prints. */
async function lookBlocks(page: Page, ledger: Ledger): Promise<void> {
  await visit(page, "Blocks");
  await fill(page, "Scope", "acme/main");
  await press(page, "List");
  await page.getByRole("button", { name: "1", exact: true }).click();
  await page.getByText("append sale 0", { exact: true }).waitFor();
  await lookAll(page, "blocks");
  const block = JSON.parse(run("block", "1", "--server", ledger.address, "--scope", "acme/main", "--json"));
  const shown = await page.locator("td code").first().innerText();
  assert.equal(Buffer.from(block.hash, "base64").toString("hex"), shown);
}

browser("the nodes of a cluster are shown, with who is away and how far behind", async (t) => {
  const [first, second, third] = await startCluster(t);
  // The page of any node shows what the leader knows.
  const { page, complaints, hosts } = await open(t, second!.address);
  // The test does not depend on which node leads: on a busy machine there may be an election at any time.
  const table = page.getByRole("region", { name: /^Nodes of the cluster; node \d leads \(term \d+\)$/ });
  await table.waitFor();
  const row = async (i: number): Promise<string[]> => (await table.locator("tbody tr").nth(i).innerText()).split("\t");
  const rows = await Promise.all([0, 1, 2].map(row));
  assert.deepEqual(rows.map((r) => [r[0], r[7]]), [["1", first!.address], ["2", second!.address], ["3", third!.address]]);
  assert.deepEqual(rows.map((r) => r[1]).sort(), ["leader", "voter", "voter"]);
  await table.getByText("alive").nth(2).waitFor();
  await table.getByText("same").nth(2).waitFor();
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

  // Without a majority no node knows more than the names.
  await first!.kill();
  await page.getByText("No node leads: an election goes on, or most voters are away.").waitFor();
  const rest = page.getByRole("region", { name: /^Nodes of the cluster \(term \d+\)$/ });
  for (const i of [0, 1, 2]) {
    const cells = (await rest.locator("tbody tr").nth(i).innerText()).split("\t");
    assert.deepEqual(cells.slice(2, 4), ["unknown", "unknown"], "its state, and how far it is behind");
  }
  await look(page, "cluster-without-leader");
  assert.deepEqual([...hosts], [second!.address]);
});

/** Moves from the top of the page to an element with the Tab key alone; the element must show that it has the focus. */
async function tabTo(page: Page, target: Locator): Promise<void> {
  await target.waitFor({ state: "attached" });
  const elements = 'a[href], button, input, select, textarea, summary, [tabindex="0"]';
  const most = await page.locator(elements).count();
  // After the last element the browser itself takes the focus, and keeps it.
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
  await reserve(ledger);
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
  await keys.press("Enter"); // pressing Enter in any field submits the form
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
  // The lease ends without a result after a while.
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

browser("a reservation whose owner is gone is settled with an admin's key, and waits no more", async (t) => {
  const file = join(temporary(t), "auth.yaml");
  const gateway = newKey(file, "gateway", "delegate", "--scope", "acme/main");
  const other = newKey(file, "backoffice", "writer", "--scope", "acme/main", "--client-id", "*");
  const till = newKey(file, "till", "writer", "--scope", "acme/main", "--client-id", "*");
  const operator = newKey(file, "operator", "admin", "--scope", "*");
  const ledger = await startLedger(t, "--auth", file);
  for (const key of [gateway, other]) assert.equal((await reserve(ledger, key)).outcome, RecordOutcome.ACQUIRED);
  const { page, complaints } = await open(t, ledger.address);
  const settling = page.getByRole("region", { name: "Settle an outcome" });
  const settle = async (key: string): Promise<void> => {
    await fill(page, "Key", key);
    await press(page, "Settle");
  };

  // Another key sees no records of other principals, and may not settle a record whose names it knows.
  await logIn(page, till);
  await visit(page, "Reservations");
  await fill(page, "Scope", "acme/main");
  await press(page, "List");
  await page.getByRole("main").getByRole("alert").first().waitFor();
  assert.equal(await page.getByText(/\d records/).count(), 0);
  await fill(page, "Namespace", "payments");
  await fill(page, "Principal", "client:gateway");
  await settle("order-4711");
  await settling.getByRole("alert").getByText(/principal|role/i).waitFor();
  assert.equal((await reserve(ledger, gateway)).outcome === RecordOutcome.REPLAY, false, "nothing was settled");

  complaints.length = 0; // the browser logs refusals as errors
  await page.getByRole("button", { name: "Forget the key" }).click();
  await logIn(page, operator);
  await fill(page, "Scope", "acme/main");
  await listIndeterminate(page);
  await page.getByText("2 records").waitFor();
  await page.getByRole("row", { name: "client:gateway" }).getByRole("button").click();
  assert.equal(await page.getByLabel("Namespace", { exact: true }).inputValue(), "payments");
  assert.equal(await page.getByLabel("Principal", { exact: true }).inputValue(), "client:gateway");
  // What is chosen next may be another party's record of the same key.
  await page.getByRole("row", { name: "client:backoffice" }).getByRole("button").click();
  assert.equal(await page.getByLabel("Principal", { exact: true }).inputValue(), "client:backoffice");
  await page.getByRole("row", { name: "client:gateway" }).getByRole("button").click();
  await look(page, "settle");
  await settle("order-4712");
  await page.getByText("NOT_FOUND").waitFor();
  await fill(page, "Response", "it was paid");
  await page.getByLabel("The work was done").check();
  await settle("order-4711");
  await settling.getByText("OK", { exact: true }).waitFor();
  await press(page, "List");
  await page.getByText("1 records").waitFor();
  assert.deepEqual(await reserve(ledger, gateway), { outcome: RecordOutcome.REPLAY, response: "it was paid" });
  assert.deepEqual(complaints, []);
});

browser("an API key is asked for, kept for the tab, and never in a URL", async (t) => {
  const file = join(temporary(t), "auth.yaml");
  const secret = newKey(file, "operator", "admin", "--scope", "*");
  const reader = newKey(file, "reader", "reader", "--scope", "*");
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

  // What a credential may not see is not asked for.
  await fill(page, "API key", reader);
  urls.length = 0;
  await page.getByRole("button", { name: "Use" }).click();
  await page.getByText("client:reader (").waitFor();
  for (let i = 0; i < 3; i++) await page.waitForResponse((r) => r.url().endsWith("/GetStatus"));
  assert.deepEqual(urls.filter((url) => /\/(GetCluster|ListRefusals|metrics)$/.test(url)), []);
  assert.equal(await page.getByRole("alert").count(), 0, "nothing is wrong");
  await page.getByText("This credential may not see figures about the whole ledger.").waitFor();
  const facts = await page.getByRole("term").allInnerTexts();
  assert.deepEqual(facts, ["ledger", "version", "ledger time", "you are"], "no zeros for what it may not see");
  assert.equal(await page.locator("figure").count(), 0);
  await look(page, "reader");
});

browser("an error is told as a sentence, whatever form it has", async (t) => {
  const ledger = await startLedger(t);
  const { page } = await open(t, ledger.address);
  await page.getByText("Takes writes.").waitFor();
  const json = (status: number, body: object): object => ({
    status, contentType: "application/json", body: JSON.stringify(body),
  });
  const answers: [call: string, answer: object, told: string][] = [
    ["metrics", { status: 502, body: "" }, "The server does not answer (HTTP 502)."],
    ["metrics", json(503, { code: "unavailable", message: "draining" }), "The server does not answer (HTTP 503)."],
    ["metrics", json(401, { code: "unauthenticated" }), "The server wants an API key, or another one (HTTP 401). Please give"],
    ["GetStatus", { status: 502, body: "<html>Bad Gateway</html>" }, "The server does not answer (HTTP 502)."],
    ["GetStatus", json(503, { code: "unavailable", message: "" }), "The server does not answer."],
    ["GetStatus", json(500, { code: "internal", message: '{"error":"x"}' }), "The server has failed."],
    ["GetStatus", json(500, { code: "internal", message: "the disk is full" }), "The disk is full."],
    ["ListRefusals", json(404, { code: "not_found" }), "There is no such thing."],
  ];
  for (const [call, answer, told] of answers) {
    await page.route(`**/${call}`, (route) => route.fulfill(answer));
    await page.getByRole("alert").getByText(told).waitFor();
    assert.equal(await page.getByRole("alert").count(), 1, told);
    await page.unroute(`**/${call}`);
    await page.waitForFunction(() => document.querySelector("[role=alert]") === null);
  }
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
  assert.deepEqual(await page.getByRole("alert").allInnerTexts(), ["The server does not answer."]);
  assert.match(await page.getByRole("status").first().innerText(), /^Whether it takes writes is not known\. .* \(UTC\)\.$/);
  assert.equal(await page.locator(".good").count(), 0, "nothing is green beside a dead server");
  await look(page, "unreachable");
  const hide = (hidden: boolean): Promise<void> => page.evaluate((hidden) => {
    Object.defineProperty(document, "hidden", { get: () => hidden, configurable: true });
    document.dispatchEvent(new Event("visibilitychange"));
  }, hidden);
  await hide(true);
  await page.getByRole("alert").getByText("This page was in the background").waitFor();
  assert.equal(await page.locator(".good").count(), 0, "nor while the page is hidden, and asks for nothing");
  await hide(false);
  await page.getByRole("alert").getByText("The server does not answer.").waitFor();
  await visit(page, "Transaction");
  await fill(page, "Transaction id", "59a496f7-0552-81a1-8400-000000000002");
  await press(page, "Find");
  await page.getByRole("alert").getByText("The server does not answer.").waitFor();
  await visit(page, "Overview");
  const restarted = await ledger.restart();
  t.after(() => restarted.kill());
  await page.waitForFunction(() => document.querySelector("[role=alert]") === null);
  await page.getByText("Takes writes.").waitFor();
});

browser("--no-console leaves it out", async (t) => {
  const ledger = await startLedger(t, "--no-console");
  for (const path of ["/", "/console/"]) {
    // The headers that a browser sends, and for which the console would be shown.
    const headers = { Accept: "text/html,application/xhtml+xml" };
    const answer = await fetch(`http://${ledger.address}${path}`, { redirect: "manual", headers });
    assert.equal(answer.status, 404, path);
  }
});
