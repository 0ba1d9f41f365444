// A program for seqledger conformance in a Chromium page, with a journal in IndexedDB:
//
//     seqledger conformance --client 'node dist/test/browser/driver.js'
//
// The profile of the browser is stored next to the path of the journal, and outlives the program.

import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { createInterface } from "node:readline";
import type { BrowserContext } from "playwright-core";
import type { Command } from "../drive.js";
import { launch, servePage } from "./chromium.js";

const say = (event: object): void => void process.stdout.write(`${JSON.stringify(event)}\n`);

/** Starts Chromium. The Chromium of a killed program may still be exiting. */
async function start(profile: string): Promise<BrowserContext> {
  for (let attempt = 1; ; attempt++) {
    try {
      return await launch(profile);
    } catch (e) {
      if (attempt === 20) throw e;
      await new Promise((resolve) => setTimeout(resolve, 250));
    }
  }
}

/** Opens the page, always under the same origin, because the journal belongs to the origin. */
async function openPage(journal: string): Promise<(c: Command) => Promise<void>> {
  const origin = `${journal}.port`;
  const { url, port } = await servePage(existsSync(origin) ? Number(readFileSync(origin, "utf8")) : 0);
  writeFileSync(origin, String(port));
  const context = await start(`${journal}.profile`);
  await context.exposeFunction("say", async (event: { event: string }) => {
    if (event.event !== "exit") return say(event);
    await context.close();
    process.exit(0);
  });
  const page = context.pages()[0] ?? (await context.newPage());
  await page.goto(url);
  await page.waitForFunction(() => document.title === "ready");
  return (c) => page.evaluate((c) => window.obey(c), c);
}

let obey: ((c: Command) => Promise<void>) | undefined;
let closing = false;
for await (const line of createInterface({ input: process.stdin })) {
  const c = JSON.parse(line) as Command;
  if (c.do === "open") {
    try {
      obey = await openPage(c.journal);
    } catch (e) {
      say({ event: "ended", message: `the browser did not start: ${String(e)}` });
      continue;
    }
  }
  if (obey === undefined && c.do === "close") process.exit(0);
  closing ||= c.do === "close";
  void obey?.(c).catch(() => {}); // the page reports the result
}
if (!closing) process.exit(0); // otherwise the page reports when it has closed its journal
