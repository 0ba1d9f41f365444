// A real server, and a proxy in front of it that loses, cuts and holds messages.

import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import {
  createServer, type IncomingHttpHeaders, type IncomingMessage, request as httpRequest, type Server,
  type ServerResponse,
} from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import type { TestContext } from "node:test";
import { type Client, type ClientOptions, createClient } from "../src/index.js";

export const binary = process.env["SEQLEDGER"] ?? "";

/** Whether a test fails where it would otherwise be skipped. */
export const required = process.env["SEQLEDGER_TEST_WEB"] === "1";
delete process.env["SEQLEDGER_TEST_WEB"]; // the server warns of an unknown variable

/** run returns the output of a command of the binary. */
export function run(...args: string[]): string {
  return execFileSync(binary, args, { encoding: "utf8", maxBuffer: 64 << 20 });
}

/** temporary returns a directory that is removed after the test. */
export function temporary(t: { after(f: () => void): void }): string {
  const dir = mkdtempSync(join(tmpdir(), "seqledger-web-"));
  t.after(() => remove(dir));
  return dir;
}

/** remove removes a directory, even while a process that is exiting still writes into it. */
export function remove(dir: string): void {
  rmSync(dir, { recursive: true, force: true, maxRetries: 100, retryDelay: 10 });
}

/** A process of seqledger serve. */
export class Ledger {
  private constructor(
    readonly address: string,
    readonly data: string,
    private readonly child: ChildProcess,
    private readonly exited: Promise<void>,
  ) {}

  /** Starts a server with a data directory, at an address, whose port may be 0. */
  static async start(data: string, address = "127.0.0.1:0", ...flags: string[]): Promise<Ledger> {
    if (binary === "") throw new Error("set SEQLEDGER to the seqledger binary; make test-web does that");
    const child = spawn(binary, ["serve", "--listen", address, "--data", data, ...flags], {
      stdio: ["ignore", "pipe", "pipe"],
    });
    const exited = new Promise<void>((resolve) => child.once("exit", () => resolve()));
    let log = "";
    child.stderr!.on("data", (chunk: Buffer) => (log = (log + chunk.toString()).slice(-4096)));
    for await (const line of createInterface({ input: child.stdout! })) {
      const match = /^serving on (\S+),/.exec(line);
      if (match !== null) return new Ledger(match[1]!, data, child, exited);
    }
    throw new Error(`the server did not start: ${log}`);
  }

  async kill(): Promise<void> {
    this.child.kill("SIGKILL");
    await this.exited;
  }

  /** Kills the server and starts it again at the same address. */
  async restart(...flags: string[]): Promise<Ledger> {
    await this.kill();
    return Ledger.start(this.data, this.address, ...flags);
  }
}

/** startLedger starts a server that is stopped after the test. */
export async function startLedger(t: TestContext, ...flags: string[]): Promise<Ledger> {
  const ledger = await Ledger.start(temporary(t), "127.0.0.1:0", ...flags);
  t.after(() => ledger.kill());
  return ledger;
}

/** clientOf returns a client that is closed after the test. */
export function clientOf(t: TestContext, address: string, options: Partial<ClientOptions> = {}): Client {
  const client = createClient({ baseUrl: `http://${address}`, ...options });
  t.after(() => client.close().catch(() => {}));
  return client;
}

/**
 * Fault is what the proxy does with a request. drop: the server does not receive it. lose: the server answers, and the
 * client does not receive the answer. hold: the client's connection breaks, and the server receives the request on
 * release. unauthenticated: the proxy answers as the ledger does to an invalid token. A number is a status that the
 * proxy itself answers.
 */
export type Fault = "none" | "drop" | "lose" | "hold" | "unauthenticated" | number;

/** A FaultProxy stands in front of a server. */
export class FaultProxy {
  fault: (procedure: string) => Fault | Promise<Fault> = () => "none";
  readonly seen: string[] = [];
  readonly authorization: string[] = [];
  private readonly held: (() => Promise<void>)[] = [];

  private constructor(
    private readonly server: Server,
    public target: string,
  ) {}

  static async start(t: TestContext, target: string): Promise<FaultProxy> {
    const server = createServer();
    const proxy = new FaultProxy(server, target);
    server.on("request", (incoming, response) => {
      const chunks: Buffer[] = [];
      incoming.on("data", (chunk: Buffer) => chunks.push(chunk));
      incoming.on("end", () => void proxy.pass(incoming, Buffer.concat(chunks), response));
    });
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    t.after(() => {
      server.closeAllConnections();
      server.close();
    });
    return proxy;
  }

  get address(): string {
    return `127.0.0.1:${(this.server.address() as AddressInfo).port}`;
  }

  private async pass(incoming: IncomingMessage, body: Buffer, response: ServerResponse): Promise<void> {
    const { headers } = incoming;
    const procedure = incoming.url!.split("/").pop()!;
    // A page first sends a preflight, which is not a call.
    const asks = incoming.method === "OPTIONS";
    if (!asks) this.seen.push(procedure);
    this.authorization.push(headers.authorization ?? "");
    const fault = asks ? "none" : await this.fault(procedure);
    if (typeof fault === "number") {
      response.writeHead(fault, { "content-type": "text/plain" }).end("the proxy answers");
      return;
    }
    if (fault === "unauthenticated") {
      response.writeHead(401, { "content-type": "application/json", "www-authenticate": 'Bearer realm="seqledger"' });
      response.end(JSON.stringify({ code: "unauthenticated", message: "no such key" }));
      return;
    }
    const forward = (): Promise<{ status: number; headers: IncomingHttpHeaders; body: Buffer }> =>
      exchange(this.target, incoming, body);
    if (fault === "hold") this.held.push(async () => void (await forward()));
    if (fault === "lose") await forward().catch(() => {});
    if (fault !== "none") {
      response.destroy();
      return;
    }
    try {
      const answer = await forward();
      response.writeHead(answer.status, answer.headers).end(answer.body);
    } catch {
      response.destroy();
    }
  }

  /** Delivers the held requests, and returns their number. */
  async release(): Promise<number> {
    const held = this.held.splice(0);
    for (const forward of held) await forward();
    return held.length;
  }

  /** Counts the requests of a procedure. */
  count(procedure: string): number {
    return this.seen.filter((s) => s === procedure).length;
  }
}

function exchange(
  target: string, incoming: IncomingMessage, body: Buffer,
): Promise<{ status: number; headers: IncomingHttpHeaders; body: Buffer }> {
  return new Promise((resolve, reject) => {
    const { method, headers, url } = incoming;
    const request = httpRequest(`http://${target}${url}`, { method, headers: { ...headers, host: target } });
    request.on("error", reject);
    request.on("response", (answer) => {
      const chunks: Buffer[] = [];
      answer.on("data", (chunk: Buffer) => chunks.push(chunk));
      answer.on("error", reject);
      answer.on("end", () => {
        const { "transfer-encoding": _, ...kept } = answer.headers;
        resolve({ status: answer.statusCode!, headers: kept, body: Buffer.concat(chunks) });
      });
    });
    request.end(body);
  });
}

/** payloads returns the payloads appended in a scope, in commit order, as printed by the Go binary. */
export function payloads(address: string, scope = "acme/main"): string[] {
  const lines = (...args: string[]): string[] =>
    run(...args, "--server", address, "--scope", scope, "--json").split("\n").filter((line) => line !== "");
  const blocks = lines("list", "blocks").length;
  if (blocks === 0) return [];
  return lines("watch", "--limit", String(blocks)).flatMap((line) => appended(JSON.parse(line)));
}

/** appended finds the payloads in a block, wherever its format puts them. */
function appended(value: unknown): string[] {
  if (value === null || typeof value !== "object") return [];
  return Object.entries(value).flatMap(([name, inner]) =>
    name === "payload" && typeof inner === "string" ? [Buffer.from(inner, "base64").toString()] : appended(inner),
  );
}

/** The Go counterpart of payer.ts. */
export const goPayer = process.env["GOPAYER"] ?? "";
