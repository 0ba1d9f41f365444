// The client in Chromium pages, with a journal in IndexedDB. After each fault the ledger is read with the Go binary: it
// contains every intended write once. Faults of the journal's database are tested in indexeddb.test.ts.

import assert from "node:assert/strict";
import { createServer, request as httpRequest } from "node:http";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { FaultProxy, Ledger, payloads, run, temporary } from "../support.js";
import { renderers } from "./chromium.js";
import {
  browser, goOn, once, open, origin, pageUrl, position, settle, setup, submit, tags, visit,
} from "./till.js";

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
  const { ledger, server, profile, context, page } = await setup(t);
  const all = tags(0, 200);
  await open(page, server);
  await submit(page, all);
  const gone = page.waitForEvent("crash");
  const pids = renderers(profile);
  assert.ok(pids.length > 0);
  for (const pid of pids) process.kill(pid, "SIGKILL");
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
  const waiting = open(second, server, { wait: true });
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

browser("a page whose calls the browser blocks is told why", async (t) => {
  const { ledger, page, server } = await setup(t);
  const told = async (address: string): Promise<string> => {
    const warning = page.waitForEvent("console", (m) => m.type() === "warning");
    void open(page, address).catch(() => {}); // it has no end
    return (await warning).text();
  };
  const strict = await Ledger.start(temporary(t)); // without --cors-origin
  t.after(() => strict.kill());
  assert.match(await told(`http://${strict.address}`), /CORS.*--cors-origin http:\/\/127\.0\.0\.1:\d+\)$/);
  await ledger.kill();
  await visit(page);
  assert.match(await told(server), /cannot be reached from this page\. Is the server running/);
});

browser("a page that is online again, or looked at again, sends at once", async (t) => {
  const { ledger, server, context, page } = await setup(t);
  await page.clock.install();
  await visit(page);
  await open(page, server);
  // From here on no timer fires, so only an event can wake the sender.
  await page.clock.pauseAt(Date.now() + 3_600_000);
  await context.setOffline(true);
  const refused = page.waitForEvent("requestfailed");
  await submit(page, tags(0, 10));
  await refused;
  await context.setOffline(false);
  for (const outcome of await settle(page)) assert.match(outcome, / committed$/);

  await ledger.kill();
  const gone = page.waitForEvent("requestfailed");
  await submit(page, tags(10, 10));
  await gone;
  const restarted = await ledger.restart("--cors-origin", origin());
  t.after(() => restarted.kill());
  const settled = settle(page);
  // The first event may arrive before the failed call has ended.
  let done = false;
  void settled.finally(() => (done = true));
  while (!done) await page.evaluate(() => document.dispatchEvent(new Event("visibilitychange")));
  for (const outcome of await settled) assert.match(outcome, / committed$/);
  once(restarted, tags(0, 20));
});

browser("a page of another origin writes with a token, in calls and over a WebSocket", async (t) => {
  const file = join(temporary(t), "auth.yaml");
  const told = run("auth", "new-key", "--id", "till", "--scope", "acme/main", "--client-id", "till", "--role", "writer",
    "--append", file);
  const token = /\b[A-Za-z0-9_-]{30,}\b/.exec(told)![0];
  const { server, page } = await setup(t, "--auth", file);
  const urls: string[] = [];
  let sockets = 0;
  const tokens = new Set<string | undefined>();
  page.on("request", (r) => {
    urls.push(r.url());
    if (r.method() === "POST") void r.allHeaders().then((h) => tokens.add(h["authorization"]), () => {});
  });
  page.on("websocket", (s) => {
    sockets++;
    urls.push(s.url());
  });
  await open(page, server, { token });
  while (sockets === 0) await page.evaluate(() => window.till.load(500, 64));
  await submit(page, tags(0, 20));
  for (const outcome of await settle(page)) assert.match(outcome, / committed$/);
  assert.deepEqual([...tokens], [`Bearer ${token}`]);
  assert.ok(urls.every((url) => !url.includes(token)), "a token is in no URL");
  await page.evaluate(() => window.till.close());
  await visit(page);
  const said = await page.evaluate(async (server) => {
    return window.till.open(server, { token: "nonsense" }).then(() => "open", String);
  }, server);
  assert.match(said, /the credential is not an API key/);
});

browser("a page of another origin makes gRPC-Web calls, whose errors come in trailers", async (t) => {
  const file = join(temporary(t), "auth.yaml");
  const told = run("auth", "new-key", "--id", "till", "--scope", "acme/main", "--client-id", "till", "--role", "writer",
    "--append", file);
  const token = /\b[A-Za-z0-9_-]{30,}\b/.exec(told)![0];
  const { server: ledger, page } = await setup(t, "--auth", file);
  // Only the server sees Chromium's preflights.
  const preflights = new Set<string>();
  const tap = createServer((request, response) => {
    const { method, headers, url } = request;
    if (method === "OPTIONS") preflights.add(headers["access-control-request-headers"] ?? "none");
    const forwarded = httpRequest(`${ledger}${url}`, { method, headers }, (answer) => {
      response.writeHead(answer.statusCode!, answer.headers);
      answer.pipe(response);
    });
    forwarded.on("error", () => response.destroy());
    response.on("close", () => forwarded.destroy());
    request.pipe(forwarded);
  });
  await new Promise<void>((resolve) => tap.listen(0, "127.0.0.1", resolve));
  t.after(() => tap.closeAllConnections());
  t.after(() => tap.close());
  const server = `http://127.0.0.1:${(tap.address() as AddressInfo).port}`;
  const types = new Set<string>();
  page.on("response", (r) => {
    if (r.url().startsWith(server)) types.add(r.headers()["content-type"] ?? "none");
  });
  const calls = (with_: string): Promise<Record<string, string>> =>
    page.evaluate(([server, token]) => window.grpcWeb(server, token), [server, with_] as const);
  assert.deepEqual(await calls(token), {
    write: "committed 1", again: "committed 1", gap: "FailedPrecondition SEQUENCE_GAP", watch: "block 1",
    entity: 'NotFound entity "absent" of acme main: not found',
  });
  for (const said of Object.values(await calls("nonsense"))) assert.match(said, /^Unauthenticated .*not an API key/);
  assert.deepEqual([...types], ["application/grpc-web+proto"]);
  assert.ok(preflights.size > 0, "the browser asked whether it may call");
  for (const asked of preflights) assert.match(asked, /authorization/);
});

browser("a refusal of the browser's own repeat is fenced, also behind a transport of the page's own", async (t) => {
  const { ledger, page } = await setup(t);
  const proxy = await FaultProxy.start(t, ledger.address);
  await open(page, `http://${proxy.address}`, { transport: true });
  // Chromium resends a request on a reused connection.
  await submit(page, ["first"]);
  await settle(page);
  const [calls, { session }] = [proxy.count("WriteBatch"), await position(page)];
  let held = false;
  proxy.fault = (procedure) => {
    if (held || procedure !== "WriteBatch") return "none";
    held = true;
    return "hold";
  };
  await page.evaluate(() => window.till.replace("stock", "late"));
  assert.match((await settle(page))[0]!, /^late NotExecutedError: .*KEY_NOT_FOUND/);
  assert.equal(proxy.count("WriteBatch") - calls, 2, "the page made one call, and the browser repeated it");
  // The condition becomes true, and then the first copy arrives.
  run("write", "--server", ledger.address, "--scope", "acme/main", "--client-id", "other", "--set", "stock=there");
  assert.equal(await proxy.release(), 1);
  const { value } = JSON.parse(run("get", "stock", "--server", ledger.address, "--scope", "acme/main", "--json"));
  assert.equal(Buffer.from(value, "base64").toString(), "there", "what was told as not executed is executed");
  assert.notEqual((await position(page)).session, session, "the refusal was reported under a session of its own");
});

browser("a server that is killed, and a clock that jumps, change nothing", async (t) => {
  const { ledger, server, page } = await setup(t);
  await open(page, server);
  await submit(page, tags(0, 100));
  const restarted = await ledger.restart("--cors-origin", origin());
  t.after(() => restarted.kill());
  await page.clock.setSystemTime(new Date("2035-01-01"));
  await submit(page, tags(100, 100));
  for (const outcome of await settle(page)) assert.match(outcome, / committed$/);
  once(restarted, tags(0, 200));
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
  const restarted = await Ledger.start(ledger.data, ledger.address, "--cors-origin", origin());
  t.after(() => restarted.kill());
  const other = await context.newPage();
  await other.goto(`${pageUrl()}empty`);
  const debug = await context.newCDPSession(other);
  await debug.send("ServiceWorker.enable");
  await page.close();
  const sync = { origin: origin(), registrationId, tag: "till", lastChance: false };
  await debug.send("ServiceWorker.dispatchSyncEvent", sync);
  while (payloads(restarted.address).length < all.length) {
    await other.waitForTimeout(200);
  }
  once(restarted, all);
  // The page finds the outcomes in its journal.
  const again = await context.newPage();
  await visit(again);
  const recovered = await open(again, server, { wait: true });
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
