// How a Writer opens with a given journal and a given server. The server is scripted.

import { create, type MessageInitShape, toBinary } from "@bufbuild/protobuf";
import { Code, ConnectError, createRouterTransport } from "@connectrpc/connect";
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test, type TestContext } from "node:test";
import { AdminService } from "../src/gen/seqledger/v1/admin_pb.js";
import {
  LedgerService, type OpenSessionRequest, type OpenSessionResponseSchema,
} from "../src/gen/seqledger/v1/ledger_pb.js";
import { ReceiptSchema } from "../src/gen/seqledger/v1/types_pb.js";
import {
  append, codeOf, createClient, isExpired, isFenced, type Journal, LedgerError, memoryJournal, OtherLedgerError,
  ProtocolError, UnsettledError, WriteErrorCode as E, type Writer,
} from "../src/index.js";
import { encodeOperations } from "../src/operations.js";
import { type Answer, callError, outcome, resultOf, scope } from "./scripted.js";

// The cases are shared with the Go client's tests (client/writer/recovercases_test.go, which explains the fields).
interface State {
  session?: number;
  attempt?: boolean;
  next?: number;
  settled?: number;
  writes?: number;
}
interface Life {
  no_reopen?: boolean;
  ledgers?: ("own" | "other")[];
  answers?: {
    expect?: number; kept?: boolean; lost?: boolean; refusal?: string;
    session?: number; previous?: number; last?: number;
  }[];
  stream?: { session?: number; last?: number };
  want: string;
  unsettled?: number;
  forget?: boolean;
  next?: number;
  rounds?: Answer[][];
  outcomes?: string[];
  ended?: boolean;
}
interface Case {
  name: string;
  journal: State;
  lives: Life[];
  after: State;
}
const table = new URL("../../../testdata/recover.json", import.meta.url);
const cases = JSON.parse(readFileSync(table, "utf8")) as Case[];

const ledgers = { own: "0123456789abcdec", other: "0123456789abcdef" };
const stream = { ...scope, clientId: "till" };

for (const c of cases) {
  test(c.name, async (t) => {
    const journal = await memoryJournal();
    fill(journal, c.journal);
    for (const life of c.lives) await live(t, journal, life);
    const none = { session: 0, attempt: false, next: 0, settled: 0, writes: 0 };
    assert.deepEqual({ ...none, ...stateOf(journal) }, { ...none, ...c.after }, "the journal");
  });
}

/** Writes a state into a journal. */
function fill(journal: Journal, { session = 0, attempt = false, next = 0, settled = 0, writes = 0 }: State): void {
  journal.claim(stream);
  const first = BigInt(next - settled - writes);
  journal.append(stream, {
    kind: "head", head: {
      ledger: session === 0 ? 0n : BigInt(`0x${ledgers.own}`), session: BigInt(session),
      attempt: attempt ? new Uint8Array(16).fill(7) : new Uint8Array(0), nextId: 0n, nextSequence: first,
    },
  });
  for (let id = 0n; id < BigInt(settled + writes); id++) {
    const sequence = first + id;
    journal.append(stream, { kind: "write", write: {
      id, sequence, key: `key ${sequence}`, tag: `tag ${sequence}`, request: encodeOperations([append(`${sequence}`)]),
      reserve: 1040,
    } });
  }
  for (let id = 0n; id < BigInt(settled); id++) {
    const { result } = resultOf({ receipt: Number(first + id) });
    assert.ok(result?.case === "receipt");
    const receipt = toBinary(ReceiptSchema, create(ReceiptSchema, result.value));
    journal.append(stream, { kind: "settled", id, receipt });
  }
  journal.release(stream);
}

/** Reads back what fill writes. */
function stateOf(journal: Journal): State {
  const [held] = journal.contents();
  if (held === undefined) return {};
  const { head, entries } = held;
  return {
    session: Number(head.session), attempt: head.attempt.length > 0, next: Number(head.nextSequence),
    settled: entries.filter((e) => e.settled).length, writes: entries.filter((e) => !e.settled).length,
  };
}

/** Opens a Writer with the journal, against a scripted server, and checks the result. */
async function live(t: TestContext, journal: Journal, life: Life): Promise<void> {
  const { answers = [], rounds = [] } = life;
  const kept = journal.contents()[0]?.head.attempt;
  const asked: OpenSessionRequest[] = [];
  let statuses = 0;
  let round = 0;
  const open = (request: OpenSessionRequest): MessageInitShape<typeof OpenSessionResponseSchema> => {
    const a = answers[asked.push(request) - 1] ?? assert.fail("a call of OpenSession too many");
    if (a.lost) throw new ConnectError("lost", Code.Unavailable);
    if (a.refusal !== undefined) {
      const code = E[a.refusal as keyof typeof E];
      throw callError(code, code === E.INVALID_ARGUMENT ? Code.InvalidArgument : Code.FailedPrecondition);
    }
    const { session = 0, previous = 0, last = 0 } = a;
    return {
      state: { session: BigInt(session), lastCommittedSequence: BigInt(last), receiptWindow: 64 },
      previousSession: BigInt(previous),
    };
  };
  const transport = createRouterTransport(({ service }) => {
    service(LedgerService, {
      openSession: open,
      getClientState() {
        const { session = 0, last = 0 } = life.stream ?? {};
        return { state: { session: BigInt(session), lastCommittedSequence: BigInt(last) } };
      },
      writeBatch: () => ({ results: (rounds[round++] ?? assert.fail("a round too many")).map(resultOf) }),
    });
    service(AdminService, { getStatus() {
      const names = life.ledgers ?? ["own"];
      return { status: { ledgerId: ledgers[names[Math.min(statuses++, names.length - 1)]!] } };
    } });
  });
  const client = createClient({ baseUrl: "http://in.memory", transport });
  t.after(() => client.close().catch(() => {}));
  const noReopen = life.no_reopen === undefined ? {} : { noReopen: life.no_reopen };
  const opened: unknown = await client.openWriter({ scope, clientId: "till", journal, ...noReopen }).catch((e) => e);
  assert.equal(opening(opened), life.want, String(opened));
  if (opened instanceof UnsettledError) assert.equal(opened.writes.length, life.unsettled ?? 0);
  if (!(opened instanceof Error)) await settle(opened as Writer, life);
  if (life.forget) await journal.forget(stream);
  assert.deepEqual(
    asked.map(({ expectedSession, attemptId }) => {
      return { expect: Number(expectedSession), kept: Buffer.from(attemptId).equals(kept ?? Buffer.of()) };
    }),
    answers.map(({ expect = 0, kept = false }) => ({ expect, kept })),
  );
  assert.ok(asked.every((r) => Buffer.from(r.attemptId).equals(asked[0]!.attemptId)), "one attempt");
  assert.equal(round, rounds.length, "rounds");
}

/** Describes the result of opening a Writer in the table's words. */
function opening(opened: unknown): string {
  if (opened instanceof LedgerError && codeOf(opened) === E.INVALID_ARGUMENT) return "refused";
  if (!(opened instanceof Error)) return "opened";
  if (!(opened instanceof UnsettledError)) return String(opened);
  if (isExpired(opened)) return "expired";
  if (isFenced(opened)) return "fenced";
  if (opened.cause instanceof OtherLedgerError) return "other ledger";
  return opened.cause instanceof ProtocolError ? "protocol" : String(opened);
}

/** Checks the outcomes of the recovered writes, and ends the Writer. */
async function settle(writer: Writer, { next = 0, outcomes = [], ended = false }: Life): Promise<void> {
  assert.equal(Number(writer.position.nextSequence), next);
  const got: string[] = [];
  for (const p of writer.recovered) got.push(await outcome(p));
  assert.deepEqual(got, outcomes);
  assert.equal(writer.error instanceof UnsettledError, ended, String(writer.error));
  await writer.close().catch(() => {}); // rejects with the reason why it has ended
}
