// What a Writer concludes from the answers of a server. The server is scripted.

import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import { Code, ConnectError, createRouterTransport } from "@connectrpc/connect";
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test, type TestContext } from "node:test";
import {
  append, type Client, type ClientOptions, codeOf, createClient, isExpired, isFenced, Journal, JournalError,
  memoryJournal, NotExecutedError, type Pending, UnsettledError, type WebSocketConstructor, WriteErrorCode as E,
  type Writer,
} from "../src/index.js";
import { fetchRepeats } from "../src/client.js";
import { AdminService } from "../src/gen/seqledger/v1/admin_pb.js";
import {
  LedgerService, type OpenSessionRequest, OpenSessionResponseSchema, type WriteRequest, WriteStreamRequestSchema,
  WriteStreamResponseSchema,
} from "../src/gen/seqledger/v1/ledger_pb.js";
import { type Answer, callError, outcome, receipt, refusal, type Result, resultOf, scope } from "./scripted.js";

const commitAll = (writes: WriteRequest[]): Result[] => writes.map((w) => receipt(w.sequence));

interface Script {
  client: Client;
  writer: Writer;
  batches: WriteRequest[][];
  opens: OpenSessionRequest[];
}

interface Server {
  /** Answers batch number n, from 0; without it, all writes are committed. */
  batch?: (writes: WriteRequest[], n: number) => Result[];
  /** The last committed sequence in the answer to OpenSession number n, from 0. */
  last?: (n: number) => bigint;
  open?: (request: OpenSessionRequest, n: number) => void;
  ttlMs?: number;
  /** The session of the stream that GetClientState tells: another client's. */
  other?: bigint;
}

/** A WebSocket whose server answers each message with the results of answer, or disconnects if that throws. */
function socketOf(answer: (writes: WriteRequest[]) => Result[]): { sockets: object[]; socket: WebSocketConstructor } {
  const sockets: object[] = [];
  class Socket {
    bufferedAmount = 0;
    onopen?: () => void;
    onclose?: () => void;
    onmessage?: (event: { data: ArrayBuffer }) => void;
    constructor() {
      sockets.push(this);
      setImmediate(() => this.onopen?.());
    }
    send(data: Uint8Array): void {
      if (data[0] === 0) setImmediate(() => this.answer(fromBinary(WriteStreamRequestSchema, data.subarray(5)).writes));
    }
    private answer(writes: WriteRequest[]): void {
      let content: Uint8Array;
      try {
        content = toBinary(WriteStreamResponseSchema, create(WriteStreamResponseSchema, { results: answer(writes) }));
      } catch (e) {
        if (e instanceof ConnectError && e.message.includes("cut")) return this.onclose?.();
        throw e;
      }
      const data = new Uint8Array(5 + content.length);
      new DataView(data.buffer).setUint32(1, content.length);
      data.set(content, 5);
      this.onmessage?.({ data: data.buffer });
    }
    close(): void {}
  }
  return { sockets, socket: Socket as unknown as WebSocketConstructor };
}

async function script(
  t: TestContext, server: Server, options: { journal?: Journal; noReopen?: true } = {}, stream = false,
  more: Partial<ClientOptions> = {},
): Promise<Script> {
  // An idle Writer does not keep a process alive.
  const alive = setInterval(() => {}, 1000);
  t.after(() => clearInterval(alive));
  const batches: WriteRequest[][] = [];
  const opens: OpenSessionRequest[] = [];
  const answer = (writes: WriteRequest[]): Result[] => {
    if (writes[0]!.clientId === "warm") return commitAll(writes);
    const n = batches.push(writes) - 1;
    return server.batch?.(writes, n) ?? commitAll(writes);
  };
  const { sockets, socket } = socketOf(answer);
  const transport = createRouterTransport(({ service }) => {
    service(LedgerService, {
      openSession(request) {
        if (request.clientId === "warm") return { state: { session: 1n, receiptWindow: 64 } };
        const n = opens.push(request) - 1;
        server.open?.(request, n);
        const ttl = server.ttlMs ?? 86_400_000;
        return create(OpenSessionResponseSchema, {
          state: {
            session: BigInt(n + 1), lastCommittedSequence: server.last?.(n) ?? 0n, receiptWindow: 64,
            lastSeen: { seconds: 1000n },
            expiresAt: { seconds: 1000n + BigInt(Math.floor(ttl / 1000)), nanos: (ttl % 1000) * 1e6 },
          },
          previousSession: request.expectedSession,
        });
      },
      getClientState: () => ({ state: { session: server.other ?? 0n } }),
      writeBatch: (request) => ({ results: answer(request.writes) }),
    });
    service(AdminService, { getStatus: () => ({ status: { ledgerId: "0123456789abcdec" } }) });
  });
  const client = createClient({
    baseUrl: "http://in.memory", transport, ...(stream ? { webSocket: socket, streamCalls: 1 } : {}), ...more,
  });
  t.after(() => client.close().catch(() => {}));
  if (stream) {
    // Its first write goes in a call, which opens the stream.
    const warm = await client.openWriter({ scope, clientId: "warm" });
    await warm.write([append("1")]);
    while (!client.sender.streams) await new Promise((resolve) => setImmediate(resolve));
    assert.equal(sockets.length, 1);
  }
  return { client, writer: await client.openWriter({ scope, clientId: "w", ...options }), batches, opens };
}

const submit = (w: Writer, n: number): Pending[] => Array.from({ length: n }, (_, i) => w.submit([append(String(i))]));

// The cases are shared with the Go client's tests (client/writer/settle_test.go): the server's answers to each round of
// sending, for writes 1, 2, …; what OpenSession reports as committed; the outcomes of the writes; the number of opened
// sessions; and whether the Writer has ended. "lost" is a call without an answer.
interface Case {
  name: string;
  rounds: (Answer[] | "lost")[];
  last?: number;
  want: string[];
  sessions: number;
  ended?: true;
  calls_only?: true;
}
const table = new URL("../../../testdata/settle.json", import.meta.url);
const cases = JSON.parse(readFileSync(table, "utf8")) as Case[];
// On a stream too few results are followed by the others.
const onStream = cases.filter((c) => !c.calls_only).map((c) => ({ ...c, stream: true }));
for (const c of [...cases, ...onStream]) {
  const stream = "stream" in c;
  test(stream ? `on a stream: ${c.name}` : c.name, async (t) => {
    let round = 0;
    const { writer, batches, opens } = await script(t, {
      last: (n) => (n === 0 ? 0n : BigInt(c.last ?? 0)),
      batch: () => {
        const answers = c.rounds[round++] ?? assert.fail("a round too many");
        if (answers === "lost") throw new ConnectError("cut", Code.Unavailable);
        return answers.map(resultOf);
      },
    }, {}, stream);
    const pendings = submit(writer, c.want.length);
    const got: string[] = [];
    for (const p of pendings) got.push(await outcome(p));
    assert.deepEqual(got, c.want);
    assert.equal(opens.length, c.sessions, "sessions");
    assert.equal(round, c.rounds.length, "rounds");
    assert.equal(writer.error instanceof UnsettledError, c.ended ?? false, String(writer.error));
    // Every copy of a write has the same key and the same operations.
    for (const w of batches.flat()) {
      const p = pendings[Number(w.sequence) - 1]!;
      assert.equal(w.idempotencyKey, p.key);
      assert.deepEqual(w.operations, p.operations);
      assert.deepEqual([w.scope?.organization, w.scope?.vault, w.clientId], ["acme", "main", "w"]);
    }
  });
}

test("with a journal, no write is reported as not executed when the Writer ends", async (t) => {
  const { writer } = await script(t, { batch: () => [refusal(E.SESSION_FENCED)] }, {
    journal: await memoryJournal(),
  });
  const [p] = submit(writer, 1);
  assert.equal(await outcome(p!), "unknown: SESSION_FENCED");
  assert.equal((writer.error as UnsettledError).writes.length, 1);
});

test("nothing is sent before the journal has it, and a journal that fails ends the Writer", async (t) => {
  const events: string[] = [];
  let fail = false;
  const storage = {
    name: "the test's journal",
    extend: async () => {
      if (fail) throw new Error("disk full");
      await new Promise((resolve) => setImmediate(resolve)); // enough time to send
      events.push("stored");
    },
    replace: () => Promise.resolve(),
    close: () => Promise.resolve(),
  };
  const { writer, opens } = await script(t, {
    batch: (writes) => {
      events.push("sent");
      return commitAll(writes);
    },
    open: () => events.push("opened"),
  }, { journal: await Journal.open(storage, [], {}) });
  await writer.write([append("1")]);
  // The attempt is stored before the call, the session before the write, and the write before it is sent.
  assert.deepEqual(events, ["stored", "opened", "stored", "stored", "sent"]);
  fail = true;
  const p = writer.submit([append("2")]);
  assert.match(await outcome(p), /^unknown/);
  const { cause } = writer.error as UnsettledError;
  assert.ok(cause instanceof JournalError && cause.reason === "failed", String(cause));
  assert.deepEqual([events.length, opens.length], [5, 1]);
  await assert.rejects(writer.write([append("3")]), NotExecutedError);
});

test("a refused message is sent in smaller ones, and a single write is refused after a session", async (t) => {
  const { writer, batches, opens } = await script(t, {
    batch: (writes) => {
      if (writes.length > 2 || writes.some((w) => w.operations.length === 2)) {
        throw callError(E.INVALID_ARGUMENT, Code.InvalidArgument);
      }
      return commitAll(writes);
    },
    last: (n) => (n === 0 ? 0n : 8n),
  });
  const pendings = submit(writer, 8);
  for (const p of pendings) assert.equal(await outcome(p), "committed");
  assert.ok(batches.length > 4 && opens.length === 1);
  const large = writer.submit([append("a"), append("b")]);
  assert.equal(await outcome(large), "not executed: INVALID_ARGUMENT");
  assert.equal(opens.length, 2);
});

test("a refusal of the whole call that is final ends the Writer", async (t) => {
  const { writer } = await script(t, {
    batch: () => {
      throw callError(E.PERMISSION_DENIED, Code.PermissionDenied);
    },
  });
  const [p] = submit(writer, 1);
  assert.equal(await outcome(p!), "unknown: PERMISSION_DENIED");
  assert.equal(codeOf(writer.error), E.PERMISSION_DENIED);
});

test("a refusal of an only copy is final, unless its call may have been repeated", async (t) => {
  for (const callsRepeat of [false, true]) {
    const { writer, opens } = await script(t, { batch: () => [refusal(E.KEY_EXISTS)] }, {}, false, { callsRepeat });
    const [p] = submit(writer, 1);
    assert.equal(await outcome(p!), "not executed: KEY_EXISTS");
    assert.equal(opens.length, callsRepeat ? 2 : 1, "sessions");
  }
});

test("only Node's own fetch is known to send a call once", () => {
  const process = { release: { name: "node" } };
  const platforms: [string, Parameters<typeof fetchRepeats>[0], boolean][] = [
    ["Node 20", { process }, false],
    ["Node 22", { process, navigator: { userAgent: "Node.js/22" } }, false],
    ["Deno", { process, navigator: { userAgent: "Deno/2.9.6" } }, true],
    ["Bun", { process, navigator: { userAgent: "Bun/1.4.5" } }, true],
    ["a worker of Cloudflare", { process, navigator: { userAgent: "Cloudflare-Workers" } }, true],
    ["a page of Electron", { process, navigator: { userAgent: "Mozilla/5.0" } }, true],
    ["a navigator without a name", { process, navigator: {} }, true],
    ["a browser", { navigator: { userAgent: "Mozilla/5.0" } }, true],
  ];
  for (const [name, platform, repeats] of platforms) assert.equal(fetchRepeats(platform), repeats, name);
});

test("a server that does not answer is told of once, until it answers", { timeout: 60_000 }, async (t) => {
  let said = (_: string): void => {};
  const log = (problem: string): void => said(problem);
  const problems: string[] = [];
  let answers = false;
  const transport = createRouterTransport(({ service }) => service(AdminService, {
    getStatus: () => {
      if (!answers) throw new ConnectError("connect ECONNREFUSED", Code.Unavailable);
      return { status: {} };
    },
  }));
  const client = createClient({ baseUrl: "http://ledger.example", transport, log });
  t.after(() => client.close());
  for (let outage = 0; outage < 2; outage++) {
    answers = false;
    const told = new Promise<string>((resolve) => (said = resolve));
    const status = client.status();
    problems.push(await told);
    said = (again) => problems.push(again);
    answers = true;
    await status;
  }
  assert.equal(problems.length, 2);
  for (const p of problems) assert.match(p, /http:\/\/ledger\.example has not answered .*ECONNREFUSED/);
});

test("an idle stream is kept alive with the same attempt, and is started anew when it was evicted", async (t) => {
  let evicted = (): void => {};
  const anew = new Promise<void>((resolve) => (evicted = resolve));
  const { writer, opens } = await script(t, {
    ttlMs: 300,
    open: (request, n) => {
      if (n === 2) throw callError(E.SESSION_EXPIRED, Code.FailedPrecondition);
      if (request.expectedSession === 0n && n > 0) evicted();
    },
  });
  await anew;
  const [first, again, refused, opened] = [opens[0]!, opens[1]!, opens[2]!, opens[3]!];
  assert.deepEqual([again.attemptId, refused.attemptId], [first.attemptId, first.attemptId]);
  assert.deepEqual([again.expectedSession, opened.expectedSession], [1n, 0n]);
  assert.notDeepEqual(opened.attemptId, first.attemptId);
  assert.equal((await writer.write([append("x")])).sequence, 1n);
});

test("a stream that was evicted is started anew once there is room for that in the journal", async (t) => {
  let full = false;
  let refused = 0;
  const change = (): Promise<void> => {
    if (!full) return Promise.resolve();
    refused++;
    return Promise.reject(new JournalError("no-space", "no room"));
  };
  const storage = { name: "the test's journal", extend: change, replace: change, close: () => Promise.resolve() };
  const { writer, opens } = await script(t, {
    ttlMs: 300,
    open: (_, n) => {
      if (n !== 1) return;
      full = true;
      throw callError(E.SESSION_EXPIRED, Code.FailedPrecondition);
    },
  }, { journal: await Journal.open(storage, [], {}) });
  while (refused < 3 && writer.error === undefined) await new Promise((resolve) => setTimeout(resolve, 10));
  assert.deepEqual([writer.error, opens.length], [undefined, 2]);
  full = false;
  assert.equal((await writer.write([append("x")])).sequence, 1n);
  assert.equal(opens.length, 3);
});

test("an idle Writer that is fenced or may not start anew ends", async (t) => {
  for (const [code, is] of [[E.SESSION_FENCED, isFenced], [E.SESSION_EXPIRED, isExpired]] as const) {
    const { writer } = await script(t, {
      ttlMs: 300,
      open: (_, n) => {
        if (n > 0) throw callError(code, Code.FailedPrecondition);
      },
    }, { noReopen: true });
    assert.ok(is(await writer.done));
  }
});

test("an idle Writer leaves its evicted stream to another client that has opened a session", async (t) => {
  const { writer, opens } = await script(t, {
    ttlMs: 300,
    other: 8n,
    open: (_, n) => {
      if (n > 0) throw callError(E.SESSION_EXPIRED, Code.FailedPrecondition);
    },
  });
  assert.ok(isFenced(await writer.done));
  assert.deepEqual(opens.map((r) => r.expectedSession), [0n, 1n]);
});
