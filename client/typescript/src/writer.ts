/// <reference lib="esnext.disposable" preserve="true" />

// A Writer numbers the writes of one stream and settles each of them, whatever happens to the connection. The rules are
// those of the Go Writer, and client/writer/doc.go explains why they are right.
//
// A Writer works in rounds. In a round it sends each write once, in order. The first answer that is not a commit, or
// the loss of a message, halts it. Once everything in flight is answered or lost, it evaluates all answers together
// (resolve). Then it starts a new round with the open writes, under the same numbers and keys, or opens a session, or
// stops, or ends.

import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import { timestampMs } from "@bufbuild/protobuf/wkt";
import type { Client } from "./client.js";
import {
  ClosedError, Code, isExpired, isFenced, LedgerError, NotExecutedError, OtherLedgerError, OutcomeUnknownError,
  ProtocolError, StoppedError, UnsettledError, WriteErrorCode,
} from "./errors.js";
import type { OpenSessionResponse, WriteResult } from "./gen/seqledger/v1/ledger_pb.js";
import { WriteRequestSchema } from "./gen/seqledger/v1/ledger_pb.js";
import { type ClientState, ReceiptSchema } from "./gen/seqledger/v1/types_pb.js";
import { type Head, type Journal, JournalError, type JournalRecord, signal, type StreamName } from "./journal.js";
import { decodeOperations, encodeOperations, type Operation } from "./operations.js";
import { hex16, newAttempt, newKey, Pending } from "./pending.js";
import { byteLength } from "./records.js";
import { backoff, retrying, sleep } from "./retry.js";
import type { Receipt, Scope } from "./types.js";

/** WriterOptions configure a Writer. scope and clientId are required. */
export interface WriterOptions {
  /** The scope of the stream. */
  scope: Scope;
  /** Identifies the stream. Only one program can use it: a new session fences the previous one. */
  clientId: string;
  /** Opens only if this is the stream's session; absent or 0 accepts any. Not allowed with a journal. */
  expectedSession?: bigint;
  /**
   * Ends the Writer if its stream is evicted while nothing is unanswered, instead of starting the stream again. Set it
   * if the application relies on continuous numbers.
   */
  noReopen?: boolean;
  /** Stores unsettled writes, so that they survive a crash. Without a journal they are only in memory. */
  journal?: Journal;
  /** Limits the unanswered writes; the default and the maximum are the receipt window. */
  maxPending?: number;
  /** Limits their encoded bytes; 8 MiB by default. One larger write is accepted when nothing is pending. */
  maxPendingBytes?: number;
  /** Limits the submitted writes that wait for a number; 10,000 by default. */
  maxWaiting?: number;
  /** Ends the opening, not the Writer. */
  signal?: AbortSignal;
}

/** SubmitOptions are options of one write. */
export interface SubmitOptions {
  /**
   * The application's own name for the write, 1 to 256 bytes. It requires a journal. A committed write stays in the
   * journal until acknowledge, and its tag for some time after that. A tag that the journal knows is refused with a
   * JournalError ("tag-in-use").
   */
  tag?: string;
  /** Ends the wait for a number in submit, and the wait for the outcome in write. */
  signal?: AbortSignal;
}

/** settling: a session is opened first. stopped: a write was refused. dead: failure says why. */
type State = "running" | "settling" | "stopped" | "dead";

const defaultMaxPendingBytes = 8 << 20;
const defaultMaxWaiting = 10_000;
const maxWaitingBytes = 64 << 20;
const maxTagBytes = 256;
const defaultTTLms = 24 * 3600 * 1000;
// Prevents a busy loop if client_ttl is tiny.
const minKeepAliveMs = 100;
// Limits one attempt of OpenSession or GetStatus. A retry is harmless.
const onceMs = 10_000;
// An upper bound of the bytes that a write adds to its stream and its operations in a message.
const writeOverhead = 128;

/** StreamLog is a Writer's stream in a journal. */
interface StreamLog {
  journal: Journal;
  name: StreamName;
  head: Head;
}

/** Writer writes one stream. Make one with Client.openWriter. */
export class Writer {
  /**
   * The writes that the journal held when the Writer was opened, in the order of submission: the committed ones without
   * an acknowledgement, and the unsettled ones, which the Writer settles like every other write.
   */
  readonly recovered: Pending[] = [];
  /** Resolves with the reason once the Writer has ended. */
  readonly done: Promise<UnsettledError>;

  /** @internal Ledger id in the receipts since the stream was started; 0 before the first one. */ ledger = 0n;
  /** @internal Scope and client id, encoded. */ readonly stream: Uint8Array;
  /** @internal A message with writes of this Writer is in flight. */ sending = false;
  /** @internal It is on the sender's list. */ queued = false;

  private state: State = "running";
  private closing = false;
  private session = 0n;
  private attempt: Uint8Array = new Uint8Array(0);
  private ttlMs = defaultTTLms;
  private limit = 1;
  /** The number of the next write. */
  private next = 0n;
  /** The unsettled writes in number order; the sender has taken those before cursor. */
  private queue: Pending[] = [];
  private cursor = 0;
  private inflight = 0; // taken and unanswered
  private bytes = 0;
  /** Nothing more is sent until everything in flight is answered and resolve has decided. */
  private halted = false;
  /** Ends the Writer as soon as nothing is in flight. */
  private fatal: unknown;
  /** Another client's writes were found in this stream: one commit proves nothing about another. */
  private shared = false;
  private log: StreamLog | undefined;
  /** Writes that are appended to the journal but not known to be stored. */
  private unstored: Pending[] = [];
  private storing = false;
  /**
   * The last committed number when a journal was recovered. Later writes are held back until everything up to it has
   * its receipt, which shows that these commits are the journal's; 0 holds nothing back.
   */
  private verifiedThrough = 0n;
  /** The refusal at the front is final; the write leaves the journal before the refusal is reported. */
  private refused = false;
  /** Writes that wait for space or for a session, in order of arrival. */
  private waiting: Pending[] = [];
  private waitingBytes = 0;
  private pumping = false;
  private refreshedAt = 0;
  private askedAt = 0;
  private work = signal();
  private stopped: StoppedError | undefined;
  private failure: UnsettledError | undefined;
  private settledState = signal();
  private resolveDone!: (reason: UnsettledError) => void;
  private readonly abort = new AbortController();
  private loop: Promise<void> = Promise.resolve();

  private constructor(
    private readonly client: Client,
    private readonly options: WriterOptions,
  ) {
    this.stream = toBinary(WriteRequestSchema, create(WriteRequestSchema, {
      scope: { organization: options.scope.organization, vault: options.scope.vault ?? "" }, clientId: options.clientId,
    }));
    this.done = new Promise((resolve) => (this.resolveDone = resolve));
  }

  /** @internal */
  static async open(client: Client, options: WriterOptions): Promise<Writer> {
    if (options.journal !== undefined && (options.expectedSession ?? 0n) !== 0n) {
      throw new TypeError("WriterOptions.expectedSession must be absent with a journal, which has it");
    }
    for (const name of ["maxPending", "maxPendingBytes", "maxWaiting"] as const) {
      if ((options[name] ?? 1) < 1) throw new RangeError(`WriterOptions.${name} must be at least 1`);
    }
    const w = new Writer(client, { ...options, scope: { ...options.scope } });
    const stop = (): void => w.abort.abort(options.signal?.reason);
    options.signal?.addEventListener("abort", stop, { once: true });
    try {
      if (options.signal?.aborted) throw options.signal.reason;
      await w.openFirst();
      client.add(w);
    } catch (e) {
      w.log?.journal.release(w.log.name);
      throw e;
    } finally {
      options.signal?.removeEventListener("abort", stop);
    }
    w.loop = w.runSessionLoop();
    client.sender.enlist(w);
    return w;
  }

  /**
   * Submits operations and resolves with the receipt; see Pending.settled for the errors. If the signal ends the wait,
   * the error is a NotExecutedError or an OutcomeUnknownError, which contains the write to wait for.
   *
   * After a refusal the Writer continues without resume if no unsettled write came from submit: the callers of write
   * see the refusal before they write again.
   */
  async write(operations: readonly Operation[], options: SubmitOptions = {}): Promise<Receipt> {
    const p = this.enter(operations, options, true);
    try {
      return await p.wait(options.signal);
    } catch (e) {
      p.awaited = false; // the caller no longer waits, so a refusal must stop the Writer
      throw e;
    }
  }

  /**
   * Submits operations and returns at once. They are encoded before it returns, so the caller may reuse its buffers.
   * The write gets its number after the ones submitted before it, once the Writer has space; a program that submits
   * many awaits Pending.accepted.
   *
   * It throws a TypeError or a RangeError for operations or options that are never valid. All other errors come from
   * Pending.settled.
   */
  submit(operations: readonly Operation[], options: SubmitOptions = {}): Pending {
    return this.enter(operations, options, false);
  }

  private enter(operations: readonly Operation[], options: SubmitOptions, awaited: boolean): Pending {
    const tag = options.tag ?? "";
    if (options.tag !== undefined) {
      if (this.log === undefined) throw new TypeError("a tag needs WriterOptions.journal");
      if (tag === "" || byteLength(tag) > maxTagBytes) throw new RangeError(`a tag has 1 to ${maxTagBytes} bytes`);
    }
    const p = this.newPending(encodeOperations(operations), operations.length, newKey(), tag);
    p.awaited = awaited;
    if (options.signal?.aborted) {
      p.finish(new NotExecutedError(0n, options.signal.reason));
    } else if (this.waiting.length > 0 || !this.accept(p)) {
      this.wait(p, options.signal);
    }
    return p;
  }

  private newPending(encoded: Uint8Array, count: number, key: string, tag: string): Pending {
    return new Pending(this, encoded, count, this.stream.length + encoded.length + writeOverhead, key, tag);
  }

  /** Queues a write until there is space. */
  private wait(p: Pending, stop: AbortSignal | undefined): void {
    const max = this.options.maxWaiting ?? defaultMaxWaiting;
    if (this.waiting.length >= max || this.waitingBytes + p.size > maxWaitingBytes) {
      const full = new Error(`${this.waiting.length} writes wait for a number already; await Pending.accepted`);
      p.finish(new NotExecutedError(0n, full));
      return;
    }
    this.waiting.push(p);
    this.waitingBytes += p.size;
    const leave = (): void => {
      const i = this.waiting.indexOf(p);
      if (i < 0) return;
      this.waiting.splice(i, 1);
      this.waitingBytes -= p.size;
      p.finish(new NotExecutedError(0n, stop!.reason));
      this.pump();
    };
    stop?.addEventListener("abort", leave, { once: true });
    if (stop !== undefined) void p.accepted.catch(() => {}).then(() => stop.removeEventListener("abort", leave));
  }

  /** Lets waiting writes continue soon, but not at once, because its callers are in the middle of a change. */
  private pump(): void {
    if (this.pumping || this.waiting.length === 0) return;
    this.pumping = true;
    queueMicrotask(() => {
      this.pumping = false;
      while (this.waiting.length > 0 && this.accept(this.waiting[0]!)) {
        this.waitingBytes -= this.waiting.shift()!.size;
      }
    });
  }

  /** Numbers p and queues it for sending, or refuses it. False means that it must wait for space. */
  private accept(p: Pending): boolean {
    const reason = this.error;
    if (reason !== undefined) {
      // Not failure itself, because it lists unknown outcomes of other writes, and the outcome of this one is certain.
      p.finish(new NotExecutedError(0n, reason instanceof UnsettledError ? reason.cause : reason));
      return true;
    }
    const room = this.queue.length === 0 ||
      this.bytes + p.size <= (this.options.maxPendingBytes ?? defaultMaxPendingBytes);
    if (this.state !== "running" || this.queue.length >= this.limit || !room) return false;
    p.sequence = this.next;
    if (this.log !== undefined) {
      try {
        this.store(this.log, p);
      } catch (e) {
        p.sequence = 0n;
        if (e instanceof JournalError && e.reason === "full") {
          void this.log.journal.roomFreed.then(() => this.pump());
          return false;
        }
        const known = e instanceof JournalError && e.reason === "tag-in-use";
        // The write that has the tag, which is the one the caller means, may be committed.
        p.finish(known ? e : new NotExecutedError(0n, e));
        const refused = isNoSpace(e) || (e instanceof JournalError && e.reason === "too-large");
        if (!known && !refused) this.failJournal(e);
        return true;
      }
    }
    this.next++;
    this.bytes += p.size;
    this.queue.push(p);
    p.durable = this.log === undefined;
    p.resolveAccepted();
    if (p.durable) this.client.sender.enlist(this);
    return true;
  }

  // The journal.

  private store(log: StreamLog, p: Pending): void {
    const id = log.head.nextId;
    log.journal.append(log.name, {
      kind: "write",
      write: {
        id, sequence: p.sequence, key: p.key, tag: p.tag, request: p.encoded,
        // A receipt is smaller: it has a few texts, and a version for each operation.
        reserve: p.tag === "" ? 0 : 1024 + 16 * p.count,
      },
    });
    p.entry = id;
    log.head.nextId++;
    log.head.nextSequence++;
    this.unstored.push(p);
    if (!this.storing) void this.storeAll(log);
  }

  /** Makes writes durable and passes them to the sender. Each sync covers what arrived during the previous one. */
  private async storeAll(log: StreamLog): Promise<void> {
    this.storing = true;
    await null; // more writes are likely to follow at once
    while (this.unstored.length > 0) {
      const batch = this.unstored;
      this.unstored = [];
      try {
        await log.journal.sync();
      } catch (e) {
        if (isNoSpace(e)) continue; // the batch was withdrawn
        this.storing = false;
        this.failJournal(e);
        return;
      }
      for (const p of batch) p.durable = true;
      this.client.sender.enlist(this);
    }
    this.storing = false;
  }

  /** Refuses the writes from an id on, for which there was no space. Their numbers are free again. */
  private withdrawn(log: StreamLog, id: bigint, reason: JournalError): void {
    const i = this.queue.findIndex((p) => p.entry === id);
    if (i < 0) return; // the Writer has ended, and has reported them
    const gone = this.queue.splice(i);
    this.unstored = [];
    this.next = log.head.nextSequence = gone[0]!.sequence;
    for (const p of gone) {
      this.bytes -= p.size;
      p.sequence = 0n;
      p.finish(new NotExecutedError(0n, reason));
    }
    this.pump();
  }

  /** Ends the Writer, because its next writes would not be durable and could not be settled after a crash. */
  private failJournal(e: unknown): void {
    this.fatal ??= e;
    this.halted = true;
    if (this.inflight === 0 && this.state !== "dead") this.resolve();
  }

  /** Changes the stream's head in the journal and returns once the change is durable. */
  private async storeHead(change: Partial<Head>): Promise<void> {
    this.appendHead(change);
    await this.log?.journal.sync();
  }

  /** storeHead for the session loop: it waits for space. */
  private async storeHeadWaiting(change: Partial<Head>): Promise<void> {
    this.appendHead(change);
    await this.syncWaiting();
  }

  private appendHead(change: Partial<Head>): void {
    if (this.log === undefined) return;
    const head = { ...this.log.head, ...change };
    this.log.journal.append(this.log.name, { kind: "head", head });
    this.log.head = head;
  }

  /**
   * Returns once the appended records are durable. While the storage has no space it retries: a write that is not sent
   * can then be refused, but a session, and the outcome of a sent write, cannot.
   */
  private async syncWaiting(): Promise<void> {
    for (let failures = 0; ; failures++) {
      try {
        return await this.log?.journal.sync();
      } catch (e) {
        if (!isNoSpace(e)) throw e;
        await sleep(backoff(failures), this.abort.signal);
      }
    }
  }

  private appendQuietly(record: JournalRecord): void {
    try {
      this.log?.journal.append(this.log.name, record);
    } catch {
      // The next write gets the same error. A Writer that starts again asks the ledger.
    }
  }

  /** @internal */
  acknowledge(p: Pending): void {
    this.log?.journal.append(this.log.name, { kind: "acknowledged", id: p.entry });
  }

  /** If the journal has a ledger id, the server's must be the same. */
  private async checkLedger(): Promise<void> {
    if (this.log === undefined) return;
    const text = (await this.client.status({ signal: this.abort.signal, timeoutMs: onceMs })).ledgerId;
    if (!/^[0-9a-f]{16}$/.test(text) || /^0*$/.test(text)) {
      throw new ProtocolError(`the server says that its ledger id is ${JSON.stringify(text)}`);
    }
    const id = BigInt(`0x${text}`);
    if (this.log.head.ledger === 0n) this.log.head.ledger = id; // becomes durable with the attempt
    if (this.log.head.ledger !== id) {
      throw new OtherLedgerError(`the server has ledger ${text}, the journal is of ${hex16(this.log.head.ledger)}`);
    }
  }

  // Opening.

  /** Opens the first session, from the journal's state if there is a journal. */
  private async openFirst(): Promise<void> {
    const journal = this.options.journal;
    if (journal === undefined) {
      const attempt = newAttempt();
      const response = await this.openSession(attempt, this.options.expectedSession ?? 0n);
      this.adopt(attempt, response.state!);
      this.next = response.state!.lastCommittedSequence + 1n;
      return;
    }
    const name: StreamName = {
      organization: this.options.scope.organization, vault: this.options.scope.vault ?? "",
      clientId: this.options.clientId,
    };
    const { head, entries } = journal.claim(name, (id, reason) => this.withdrawn(log, id, reason));
    const log = (this.log = { journal, name, head });
    for (const e of entries) {
      const p = this.newPending(e.request, decodeOperations(e.request).length, e.key, e.tag);
      p.session = head.session;
      p.sequence = e.sequence;
      p.entry = e.id;
      p.durable = true;
      p.resolveAccepted();
      this.recovered.push(p);
      if (e.settled) {
        p.receipt = fromBinary(ReceiptSchema, e.receipt);
        p.finish();
      } else {
        this.queue.push(p);
        this.bytes += p.size;
      }
    }
    await this.recover(log);
  }

  /**
   * Opens a session that only this journal's owner can get, and prepares the unsettled writes to be sent again under
   * it. If that fails, it returns them to the application in an UnsettledError.
   */
  private async recover(log: StreamLog): Promise<void> {
    const before = { ...log.head };
    const unsettled = (cause: unknown): UnsettledError => this.returnUnsettled(cause);
    try {
      await this.checkLedger();
    } catch (e) {
      throw e instanceof OtherLedgerError ? unsettled(e) : e;
    }
    let attempt = before.attempt;
    if (attempt.length === 0) {
      attempt = newAttempt();
      await this.storeHead({ attempt });
    }
    let opened: { response: OpenSessionResponse; anew: boolean };
    try {
      opened = await this.resumeSession(attempt, before.session);
    } catch (e) {
      throw isExpired(e) || isFenced(e) ? unsettled(e) : e;
    }
    const state = opened.response.state!;
    const last = state.lastCommittedSequence;
    let next = last + 1n;
    if (before.session !== 0n && !opened.anew) {
      next = before.nextSequence;
      const first = this.queue[0]?.sequence ?? next;
      // The session is the journal's, so no other client has written. Either the ledger or the journal has lost writes,
      // or this is an old copy of the journal.
      if (last + 1n < first || last >= next) {
        throw unsettled(new ProtocolError(
          `the ledger has committed up to sequence ${last}, the journal says ${first - 1n} to ${next - 1n}`,
        ));
      }
    }
    // Check again, because another server may have taken over the address between the two calls.
    try {
      await this.checkLedger();
    } catch (e) {
      throw e instanceof OtherLedgerError ? unsettled(e) : e;
    }
    await this.storeHead({ session: state.session, attempt: new Uint8Array(0), nextSequence: next });
    this.adopt(attempt, state);
    this.next = next;
    this.ledger = log.head.ledger;
    for (const p of this.queue) {
      // It is sent again anyway, because the answer is the receipt.
      p.committed = p.sequence <= last;
      if (p.committed) this.verifiedThrough = last;
    }
  }

  /**
   * Opens a session that expects the journal's session. anew means that the stream was evicted while nothing was
   * unanswered, and starts again. An earlier program may have done that under the same attempt and crashed before it
   * stored the session; the session before this one shows that.
   */
  private async resumeSession(
    attempt: Uint8Array, expected: bigint,
  ): Promise<{ response: OpenSessionResponse; anew: boolean }> {
    try {
      const response = await this.openSession(attempt, expected);
      if (expected === 0n || response.previousSession === expected) return { response, anew: false };
      onlyOurs(response);
      const e = refusal(
        WriteErrorCode.SESSION_EXPIRED,
        "the stream was evicted, and an earlier Writer with this journal started it anew",
      );
      if (this.queue.length > 0 || this.options.noReopen === true) throw e;
      return { response, anew: true };
    } catch (e) {
      if (!isExpired(e) || this.queue.length > 0 || this.options.noReopen === true) throw e;
    }
    await this.unused();
    const response = await this.openSession(attempt, 0n);
    onlyOurs(response);
    return { response, anew: true };
  }

  /**
   * Refuses to start an evicted stream anew if another client has used it since. It asks before a session is opened:
   * the session would stand even if this Writer refused it, and lock out the other client. onlyOurs catches a client
   * that comes between.
   */
  private async unused(): Promise<void> {
    const { scope, clientId } = this.options;
    const stream = await this.client.getClientState(scope, clientId, { signal: this.abort.signal, timeoutMs: onceMs });
    refuseUsed(stream.session, stream.lastCommittedSequence);
  }

  /** The writes stay in the journal until the application calls Journal.forget, so a crash loses none. */
  private returnUnsettled(cause: unknown): UnsettledError {
    const writes = this.queue;
    this.queue = [];
    for (const p of writes) p.finish(new OutcomeUnknownError(p, cause));
    return new UnsettledError(writes, cause);
  }

  /** Makes one OpenSession call with retries, all under the same attempt. */
  private async openSession(
    attempt: Uint8Array, expectedSession: bigint, abort = this.abort.signal,
  ): Promise<OpenSessionResponse> {
    const { organization, vault = "" } = this.options.scope;
    const response = await this.client.openSession({
      scope: { organization, vault }, clientId: this.options.clientId, attemptId: attempt, expectedSession,
    }, { signal: abort, timeoutMs: onceMs });
    if ((response.state?.session ?? 0n) === 0n) throw new ProtocolError("OpenSession returned no session");
    return response;
  }

  /** Opens a session, however long that takes. It fails only on a final answer or when the Writer ends. */
  private async openSessionRetrying(
    expected: bigint,
  ): Promise<{ attempt: Uint8Array; response: OpenSessionResponse }> {
    const attempt = newAttempt();
    await this.storeHeadWaiting({ attempt });
    const response = await retrying(this.abort.signal, () => this.openSession(attempt, expected));
    return { attempt, response };
  }

  /** Starts to use a session. */
  private adopt(attempt: Uint8Array, state: ClientState): void {
    this.attempt = attempt;
    this.session = state.session;
    this.refreshedAt = performance.now();
    this.limit = Math.max(1, Math.min(state.receiptWindow, this.options.maxPending ?? state.receiptWindow));
    this.ttlMs = defaultTTLms;
    if (state.expiresAt !== undefined && state.lastSeen !== undefined) {
      const ttl = timestampMs(state.expiresAt) - timestampMs(state.lastSeen);
      if (ttl > 0) this.ttlMs = ttl;
    }
  }

  // Sending: the methods that the sender calls.

  /** @internal Returns the next write to send in this round, if there is one. */
  peek(): Pending | undefined {
    while (!this.halted && this.cursor < this.queue.length) {
      const p = this.queue[this.cursor]!;
      if (p.verdict === "committed") {
        this.cursor++;
        continue;
      }
      const held = this.verifiedThrough !== 0n && p.sequence > this.verifiedThrough;
      return p.durable && !held ? p : undefined;
    }
    return undefined;
  }

  /** @internal Takes the write that peek returned, because it is being sent. */
  take(p: Pending): void {
    this.cursor++;
    this.inflight++;
    p.markSent(this.session);
  }

  /** @internal Handles an answer. If the answer is impossible, it throws a ProtocolError and changes nothing. */
  answered(p: Pending, result: WriteResult): void {
    if (p.done) return; // the Writer has ended
    p.answer(result, this);
    this.decided(p);
  }

  /** @internal Handles a refusal of the only write of a message, which is a refusal of the message. */
  frameRefused(p: Pending, e: LedgerError): void {
    if (p.done) return;
    p.verdict = "refused";
    p.refusal = e;
    p.doubtful = true; // a session is opened before the refusal is reported
    this.decided(p);
  }

  /** @internal Records that no answer arrived. sent is false if the copy never left this machine. */
  lost(p: Pending, sent: boolean): void {
    if (p.done) return;
    p.verdict = "none";
    if (sent) p.doubtful = true;
    else p.markUnsent();
    this.halted = true;
    if (--this.inflight === 0) this.resolve();
  }

  /** @internal Ends the Writer because the server refuses all its messages. */
  abandon(cause: unknown): void {
    if (this.queue.length > 0) this.terminate(cause);
  }

  // Deciding what answers mean.

  /**
   * Commits at the front of the queue are settled at once, because nothing can undo them. Any other answer halts the
   * Writer, because its meaning depends on what else is in flight.
   */
  private decided(p: Pending): void {
    this.inflight--;
    if (p.verdict === "committed") {
      p.committed = true;
      if (!p.receipt!.replayed) this.refreshedAt = performance.now();
    } else {
      this.halted = true;
    }
    if (p.verdict === "fatal") this.noteFatal(p);
    this.settleFront();
    if (this.halted && this.inflight === 0) this.resolve();
  }

  /** Records why the Writer must end. The first reason wins. */
  private noteFatal(p: Pending): void {
    const code = p.refusal?.code;
    this.shared ||= p.foreign !== undefined || code === WriteErrorCode.SEQUENCE_REUSED ||
      code === WriteErrorCode.IDEMPOTENCY_KEY_REUSED;
    this.fatal ??= p.refusal ?? p.foreign;
  }

  private settle(p: Pending, failure?: unknown): void {
    if (failure === undefined && this.log !== undefined) {
      const receipt = p.tag === "" ? new Uint8Array(0) : toBinary(ReceiptSchema, p.receipt!);
      this.appendQuietly({ kind: "settled", id: p.entry, receipt });
    }
    this.bytes -= p.size;
    p.finish(failure);
    this.pump();
  }

  /** Settles commits in order. A commit that may be another client's waits. */
  private settleFront(): void {
    for (let p = this.queue[0]; p !== undefined; p = this.queue[0]) {
      if (p.verdict !== "committed" || (!this.isVerified() && !p.proven)) return;
      this.queue.shift();
      this.settle(p);
      this.cursor = Math.max(0, this.cursor - 1);
      if (p.sequence === this.verifiedThrough) {
        this.verifiedThrough = 0n;
        this.client.sender.enlist(this);
      }
    }
  }

  /**
   * Reports whether the commits that the ledger had when the journal was recovered are known to be the journal's: an
   * old copy of a journal has the same numbers.
   */
  private isVerified(): boolean {
    return this.verifiedThrough === 0n || this.queue.length === 0 || this.verifier()?.verdict === "committed";
  }

  /** Returns the write whose receipt, or commit, verifies the others, if it is in the queue. */
  private verifier(): Pending | undefined {
    if (this.verifiedThrough === 0n || this.queue.length === 0) return undefined;
    return this.queue[Number(this.verifiedThrough - this.queue[0]!.sequence)];
  }

  /** Decides how to continue once everything that was sent has been answered or lost. */
  private resolve(): void {
    this.settleFront();
    const front = this.queue[0];
    const last = this.verifier();
    if (this.fatal !== undefined) {
      this.terminate(this.fatal);
    } else if (front === undefined) {
      this.halted = false;
    } else if (front.verdict === "gap") {
      // The previous write is committed, so the ledger cannot be waiting for it: the ledger has lost a commit, or is
      // another ledger.
      const problem = `gap after a committed write: ${front.refusal!.message}`;
      this.terminate(new ProtocolError(problem, { cause: front.refusal }));
    } else if (front.verdict === "committed" && (last?.verdict === "refused" || last?.verdict === "gap")) {
      // The front waits for a receipt that the server refuses to give.
      this.refusedThoughCommitted(last);
    } else if (front.verdict !== "refused") {
      this.resend();
    } else if (front.committed) {
      this.refusedThoughCommitted(front);
    } else if (this.queue.some((p) => p.doubtful || p.committed)) {
      // Not final: a copy might still commit when conditions change or gaps fill. A new session fences all copies; the
      // session loop opens it and calls fenced.
      this.state = "settling";
      this.wakeSessionLoop();
    } else {
      this.stop();
    }
  }

  /** A server with smaller limits refuses a committed write before it looks for a receipt. */
  private refusedThoughCommitted(p: Pending): void {
    if (this.shared || !this.isVerified()) {
      this.terminate(new ProtocolError(`write ${p.sequence} is committed, and refused: ${p.refusal!.message}`));
      return;
    }
    p.verdict = "committed";
    p.refusal = undefined;
    p.receipt = p.bareReceipt();
    this.resolve();
  }

  /** Starts a new round with every write that is not known to be committed. */
  private resend(): void {
    for (const p of this.queue) if (p.verdict !== "committed") p.verdict = "none";
    this.cursor = 0;
    this.halted = false;
    this.setState("running");
    this.client.sender.enlist(this);
  }

  /**
   * Makes the refusal at the front final: no copy of any write in the queue is in flight. With a journal that must
   * remain true after a crash, so the writes leave the journal first.
   */
  private stop(): void {
    if (this.log === undefined) {
      this.report();
      return;
    }
    this.state = "settling";
    this.refused = true;
    this.wakeSessionLoop();
  }

  /**
   * Settles the queue with the refusal at the front. If a write came from submit, the Writer stops, because the
   * application may submit more writes that depend on earlier ones before it sees the refusal.
   */
  private report(): void {
    const [front, ...behind] = this.queue;
    this.queue = [];
    const stopped = new StoppedError(front!.sequence, front!.refusal!);
    this.next = front!.sequence;
    let stop = !front!.awaited;
    this.settle(front!, new NotExecutedError(front!.sequence, front!.refusal));
    for (const p of behind) {
      stop ||= !p.awaited;
      this.settle(p, new NotExecutedError(p.sequence, stopped));
    }
    this.cursor = 0;
    this.halted = false;
    this.stopped = stop ? stopped : undefined;
    this.setState(stop ? "stopped" : "running");
  }

  /** Continues under a new session: no copy from an older session can commit, and last shows which did. */
  private fenced(last: bigint): void {
    const first = this.queue[0]!.sequence;
    if (last + 1n < first || last >= this.next) {
      this.terminate(new ProtocolError(
        `last committed sequence ${last} with ${first} to ${this.next - 1n} unsettled`,
      ));
      return;
    }
    const undone = this.queue.find((p) => p.committed && p.sequence > last);
    if (undone !== undefined) {
      this.terminate(new ProtocolError(`last committed sequence ${last} after ${undone.sequence} was committed`));
      return;
    }
    for (const p of this.queue) {
      p.doubtful = false;
      p.sends = 0;
      p.committed ||= p.sequence <= last;
    }
    // If the refused write has committed through another copy, sending it again returns its receipt.
    if (last >= first) this.resend();
    else this.stop();
  }

  /**
   * Ends the Writer. It settles the writes that are known to be committed or not executed, and returns the others to
   * the application. With a journal it reports none as not executed, because the next Writer may send them.
   */
  private terminate(cause: unknown): void {
    if (this.state === "dead") return;
    this.state = "dead";
    const verified = this.isVerified();
    const open = this.queue;
    this.queue = [];
    // Sequences have no gaps, so a commit proves all those before it, unless another client numbers this stream too, or
    // it is not yet known whose commits they are.
    const proven = this.shared ? -1 : open.findLastIndex((p) => (p.committed && verified) || p.proven);
    const unsettled: Pending[] = [];
    open.forEach((p, i) => {
      if (i <= proven || p.proven) {
        if (p.verdict !== "committed") p.receipt = p.bareReceipt();
        this.settle(p);
      } else if (this.log === undefined && !p.committed && !p.doubtful && (p.sends === 0 || p.verdict !== "none")) {
        this.settle(p, new NotExecutedError(p.sequence, p.reason(cause)));
      } else {
        unsettled.push(p);
        this.settle(p, new OutcomeUnknownError(p, cause));
      }
    });
    this.failure = new UnsettledError(unsettled, cause);
    this.cursor = 0;
    this.halted = true;
    this.setState("dead");
    this.resolveDone(this.failure);
    this.client.remove(this);
    this.wakeSessionLoop();
  }

  private setState(state: State): void {
    this.state = state;
    this.settledState.resolve();
    this.settledState = signal();
    this.pump();
  }

  // The session loop: opens sessions and keeps an idle stream alive.

  private wakeSessionLoop(): void {
    this.work.resolve();
  }

  private async runSessionLoop(): Promise<void> {
    while (!this.abort.signal.aborted && this.state !== "dead") {
      await this.nextWork();
      this.work = signal();
      await this.fence();
      await this.dropFromJournal();
      if (this.keepAliveIn() <= 0) await this.keepAlive();
    }
    this.log?.journal.release(this.log.name);
  }

  /** Waits until there is work, or until the stream needs a keepalive. */
  private async nextWork(): Promise<void> {
    // A timer holds at most 2^31-1 ms. It must not keep an idle program alive.
    const timer = setTimeout(() => this.work.resolve(), Math.min(Math.max(0, this.keepAliveIn()), 2 ** 31 - 1));
    (timer as { unref?: () => void }).unref?.();
    const stop = (): void => this.work.resolve();
    this.abort.signal.addEventListener("abort", stop, { once: true });
    if (this.abort.signal.aborted) stop();
    await this.work.promise;
    clearTimeout(timer);
    this.abort.signal.removeEventListener("abort", stop);
  }

  private get keepAliveEvery(): number {
    return Math.max(this.ttlMs / 3, minKeepAliveMs);
  }

  private keepAliveIn(): number {
    return Math.max(this.refreshedAt, this.askedAt) + this.keepAliveEvery - performance.now();
  }

  /**
   * Replaces the Writer's own session, so that the ledger refuses every copy in flight. Expecting the old session
   * ensures that all commits since then are this Writer's.
   */
  private async fence(): Promise<void> {
    if (this.state !== "settling" || this.refused) return;
    try {
      const { attempt, response } = await this.openSessionRetrying(this.session);
      await this.storeHeadWaiting({
        session: response.state!.session, attempt: new Uint8Array(0), nextSequence: this.next,
      });
      if (!this.isSettling()) return; // the Writer was closed
      this.adopt(attempt, response.state!);
      this.fenced(response.state!.lastCommittedSequence);
    } catch (e) {
      if (this.isSettling()) this.terminate(e);
    }
  }

  private isSettling(): boolean {
    return this.state === "settling";
  }

  /** Removes a finally refused write and all writes after it from the journal, and then reports them. */
  private async dropFromJournal(): Promise<void> {
    if (this.state !== "settling" || !this.refused) return;
    const front = this.queue[0]!;
    try {
      this.log!.journal.append(this.log!.name, { kind: "dropped", id: front.entry });
      this.log!.head.nextSequence = front.sequence;
      await this.syncWaiting();
      this.refused = false;
      if (this.isSettling()) this.report();
    } catch (e) {
      this.refused = false;
      if (this.isSettling()) this.terminate(e);
    }
  }

  /**
   * Refreshes an idle stream by repeating the attempt that opened the session. The expected session ensures that this
   * neither recreates an evicted stream nor takes over another client's.
   */
  private async keepAlive(): Promise<void> {
    this.askedAt = performance.now();
    if (this.state === "dead" || this.state === "settling") return;
    // Bounded, so that an attempt that hangs leaves time for the next one.
    const limited = AbortSignal.any([this.abort.signal, AbortSignal.timeout(this.keepAliveEvery / 2)]);
    try {
      const { attempt } = this;
      const response = await this.openSession(attempt, this.session, limited);
      if (attempt === this.attempt) this.adopt(attempt, response.state!);
    } catch (e) {
      if (isFenced(e) || (isExpired(e) && this.options.noReopen === true)) this.fail(e);
      else if (isExpired(e)) await this.reopen();
      // Otherwise the server is unreachable, and the next iteration tries again.
    }
  }

  /** Ends the Writer once everything in flight is answered. */
  private fail(e: unknown): void {
    if (this.state === "dead") return;
    this.fatal = e;
    this.halted = true;
    if (this.inflight === 0) this.resolve();
  }

  /**
   * Starts the stream again after an eviction, if nothing is unanswered. Otherwise the answers to the unanswered writes
   * will say that the session has expired, and so which writes are open.
   */
  private async reopen(): Promise<void> {
    if (this.queue.length > 0 || this.state === "dead") return;
    const before = this.state;
    this.state = "settling"; // submit waits, because the numbers start again at 1
    this.refused = false;
    try {
      await retrying(this.abort.signal, () => this.unused());
      const { attempt, response } = await this.openSessionRetrying(0n);
      onlyOurs(response);
      await retrying(this.abort.signal, () => this.checkLedger());
      const state = response.state!;
      const next = state.lastCommittedSequence + 1n;
      await this.storeHeadWaiting({ session: state.session, attempt: new Uint8Array(0), nextSequence: next });
      if (!this.isSettling()) return;
      this.adopt(attempt, state);
      this.next = next;
      this.ledger = this.log?.head.ledger ?? 0n;
      this.setState(before); // a stopped Writer stays stopped: eviction does not replace resume
    } catch (e) {
      if (this.isSettling()) this.terminate(e);
    }
  }

  // State and end.

  /**
   * Restarts a Writer that stopped at a refused write. The next write takes the refused write's number. It waits while
   * the Writer opens a session, and does nothing if the Writer is running.
   */
  async resume(): Promise<void> {
    while (this.state === "settling") await this.settledState.promise;
    if (this.state === "stopped" && !this.closing) {
      this.stopped = undefined;
      this.setState("running");
    }
    if (this.error !== undefined) throw this.error;
  }

  /**
   * Waits until every write submitted before the call is settled. It rejects as the last of them does, or with the
   * reason why the Writer accepts no more writes.
   */
  async flush(): Promise<void> {
    const tail = this.waiting.at(-1) ?? this.queue.at(-1);
    if (tail !== undefined) await tail.settled;
    else if (this.error !== undefined) throw this.error;
  }

  /**
   * Why the Writer accepts no writes: a StoppedError until resume, a ClosedError while it is being closed, an
   * UnsettledError once it has ended. Undefined while it accepts writes.
   */
  get error(): StoppedError | ClosedError | UnsettledError | undefined {
    if (this.state === "dead") return this.failure;
    if (this.closing) return new ClosedError("the Writer");
    return this.state === "stopped" ? this.stopped : undefined;
  }

  /** The current session, the number that the next write will get, and how many writes are unsettled. */
  get position(): { session: bigint; nextSequence: bigint; pending: number } {
    return { session: this.session, nextSequence: this.next, pending: this.queue.length };
  }

  /**
   * Accepts no more writes, waits until the submitted ones are settled or the signal ends the wait, and ends the
   * Writer. It rejects with an UnsettledError if writes remain unsettled. The session stays open, and the next Writer
   * fences it.
   */
  async close(options: { signal?: AbortSignal } = {}): Promise<void> {
    this.closing = true;
    this.pump();
    const tail = this.queue.at(-1);
    if (tail !== undefined) await tail.wait(options.signal).catch(() => {});
    this.terminate(new ClosedError("the Writer"));
    this.abort.abort(new ClosedError("the Writer"));
    await this.loop;
    if (this.failure!.writes.length > 0) throw this.failure;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}

const isNoSpace = (e: unknown): boolean => e instanceof JournalError && e.reason === "no-space";

/** refuseUsed for a session that has been opened. */
function onlyOurs({ previousSession, state }: OpenSessionResponse): void {
  refuseUsed(previousSession, state?.lastCommittedSequence ?? 0n);
}

/** Refuses a stream that another client has used since it was evicted, with a session or without one. */
function refuseUsed(session: bigint, last: bigint): void {
  if (session === 0n && last === 0n) return;
  const e = refusal(
    WriteErrorCode.SESSION_FENCED,
    session !== 0n
      ? "another session was opened after the stream was evicted"
      : `another client wrote up to sequence ${last} after the stream was evicted`,
  );
  e.session = session;
  throw e;
}

function refusal(code: WriteErrorCode, message: string): LedgerError {
  const e = new LedgerError(Code.FailedPrecondition, message);
  e.code = code;
  e.wire = true;
  return e;
}
