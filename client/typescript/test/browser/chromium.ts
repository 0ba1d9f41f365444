// Debian's Chromium, and the server of the page.

import { existsSync, mkdtempSync, readdirSync, readFileSync } from "node:fs";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { TestContext } from "node:test";
import { fileURLToPath } from "node:url";
import { type BrowserContext, chromium } from "playwright-core";
import { remove, required } from "../support.js";

export const executablePath = process.env["CHROMIUM"] ?? "/usr/bin/chromium";

/**
 * What to install if there is no Chromium. In that case tests are skipped, unless SEQLEDGER_TEST_WEB=1: a gate that
 * skips them must not look like one in which they pass.
 */
export const missing = existsSync(executablePath)
  ? false
  : `${executablePath} is missing: apt-get install chromium, or set CHROMIUM to the path of a Chromium`;
if (missing !== false && required) throw new Error(`SEQLEDGER_TEST_WEB=1: ${missing}`);

// Ends a test that hangs. An overloaded machine must not look like a hanging test.
const patienceMs = 120_000;

/** launch starts Chromium with its own profile. It makes no network requests that a test does not ask for. */
export async function launch(profile: string): Promise<BrowserContext> {
  const context = await chromium.launchPersistentContext(profile, {
    executablePath, headless: true, timeout: patienceMs,
    args: [
      "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
      "--disable-component-update", "--disable-sync",
    ],
  });
  context.setDefaultTimeout(patienceMs);
  return context;
}

/** launchFor starts Chromium for a test. After the test Chromium is stopped and then its profile removed. */
export async function launchFor(
  t: TestContext, profile = mkdtempSync(join(tmpdir(), "seqledger-web-")),
): Promise<BrowserContext> {
  const context = await launch(profile);
  t.after(async () => {
    await context.close();
    remove(profile);
  });
  return context;
}

/**
 * renderers returns the process ids of the renderers of the Chromium with a profile: its descendants of that type. The
 * debugger's protocol gives process ids only on the browser's own connection, which playwright does not expose.
 */
export function renderers(profile: string): number[] {
  const processes = readdirSync("/proc").filter((name) => /^\d+$/.test(name)).flatMap((pid) => {
    try {
      const parent = /^PPid:\s+(\d+)/m.exec(readFileSync(`/proc/${pid}/status`, "utf8"))![1]!;
      // Chromium overwrites its arguments with its own text.
      return [{ pid, parent, command: readFileSync(`/proc/${pid}/cmdline`, "utf8").split(/[\0 ]/) }];
    } catch {
      return []; // it has exited meanwhile
    }
  });
  const byId = new Map(processes.map((p) => [p.pid, p]));
  const isOurs = (p: (typeof processes)[number] | undefined): boolean =>
    p !== undefined && (p.command.includes(`--user-data-dir=${profile}`) || isOurs(byId.get(p.parent)));
  return processes.filter((p) => p.command.includes("--type=renderer") && isOurs(p)).map((p) => Number(p.pid));
}

/** servePage serves the page built by npm run build, and the examples unchanged, on a loopback port. */
export async function servePage(port = 0): Promise<{ url: string; port: number; server: Server }> {
  const scripts = fileURLToPath(new URL("../../page/", import.meta.url));
  const examples = fileURLToPath(new URL("../../../examples/", import.meta.url));
  const server = createServer((request, response) => {
    const { pathname } = new URL(request.url!, "http://localhost");
    if (pathname.endsWith(".js")) {
      response.writeHead(200, { "content-type": "text/javascript" }).end(readFileSync(join(scripts, pathname)));
      return;
    }
    response.writeHead(200, { "content-type": "text/html" });
    if (pathname.endsWith(".html")) {
      response.end(readFileSync(join(examples, pathname)));
      return;
    }
    response.end('<!doctype html><title>loading</title><script type="module" src="/page.js"></script>');
  });
  await new Promise<void>((resolve, reject) => {
    server.once("error", reject);
    server.listen(port, "127.0.0.1", resolve);
  });
  const chosen = (server.address() as AddressInfo).port;
  return { url: `http://127.0.0.1:${chosen}/`, port: chosen, server };
}
