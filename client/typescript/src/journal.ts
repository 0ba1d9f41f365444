/// <reference lib="esnext.disposable" preserve="true" />

// A journal keeps unsettled writes, so that they survive a crash of the program. The rules are those of the Go package
// client/journal. The storage decides where the bytes go.

import { ClosedError, messageOf } from "./errors.js";
import {
  byteLength, type Decoded, type Entry, type Head, type JournalRecord, newHead, RecordBuffer, StreamState,
  type StreamName, type Tag,
} from "./records.js";

export type { Entry, Head, JournalRecord, StreamName } from "./records.js";

/** JournalOptions configure a journal. */
export interface JournalOptions {
  /**
   * Limits the stored bytes; 64 MiB by default. At most a quarter of them may be live: writes that are in flight, or
   * whose outcome is not acknowledged. Beyond that a Writer's submit waits.
   */
  maxBytes?: number;
  /**
   * Refuses to create a journal. Set it if the program has had one before: a lost journal would look like an empty one,
   * and its writes would be sent a second time.
   */
  mustExist?: boolean;
  /**
   * How long a tag stays in use after its write is acknowledged, in milliseconds; 24 hours by default, 0 means not at
   * all.
   */
  rememberTagsMs?: number;
}

/** JournalError says why a journal did not accept a record, or cannot be used. */
export class JournalError extends Error {
  override readonly name = "JournalError";

  /**
   * The reasons: "full" (settling and acknowledging writes frees space), "too-large" (would not fit into an empty
   * journal), "tag-in-use" (the write with this tag is in flight or committed, so this is not a new write), "claimed"
   * (another Writer has the stream), "locked" (another process has the journal), "no-space" (the browser has no space
   * for the write, which then has no number; the journal continues once there is space), "missing" (mustExist is set),
   * "version" (another version of this package wrote it), "damaged", and "failed" (the storage failed, so nothing later
   * is certain to be stored; fix the cause and open the journal again).
   */
  constructor(
    readonly reason:
      | "full" | "too-large" | "no-space" | "tag-in-use" | "claimed" | "locked" | "missing" | "version" | "damaged"
      | "failed",
    message: string,
    options?: { cause?: unknown },
  ) {
    super(message, options);
  }
}

/** JournalStorage stores groups of records. A journal never makes two calls at once. */
export interface JournalStorage {
  /** The journal's name in messages. */
  readonly name: string;
  /**
   * Appends a group after the existing ones, and returns once it is durable. Here and in replace, a JournalError
   * ("no-space") guarantees that nothing was stored.
   */
  extend(records: Uint8Array): Promise<void>;
  /** Replaces everything by one group, which may be empty, and returns once that is durable. */
  replace(records: Uint8Array): Promise<void>;
  close(): Promise<void>;
  /** Returns why there is no space for this many more bytes, or undefined if there is. */
  lacksRoom?(bytes: number): string | undefined;
}

const defaultMaxBytes = 64 << 20;
const minMaxBytes = 16 << 10;
const limitMaxBytes = 1 << 30;
const defaultRememberTagsMs = 24 * 3600 * 1000;
// An upper bound of what a group needs in addition to its records.
const groupOverhead = 16;

/** tagCost is an upper bound of what a remembered tag needs, in bytes. */
const tagCost = (tag: string): number => 32 + byteLength(tag);

/**
 * Withdrawn is called if the storage had no space for the writes of a stream from an id on, before anything else is
 * stored: the journal has forgotten them, and their numbers are free again.
 */
export type Withdrawn = (id: bigint, reason: JournalError) => void;

/** Journal is an open journal. Any number of Writers of a program share one, and share its syncs. */
export class Journal {
  private readonly streams = new Map<string, StreamState>();
  private numbers = 0n;
  private buffer = new RecordBuffer();
  private appended = 0;
  private durable = 0;
  private flushing: Promise<JournalError | undefined> | undefined;
  /** The streams with writes that no flush has begun to store. */
  private dirty = new Set<StreamState>();
  private readonly withdrawals = new Map<StreamState, Withdrawn>();
  /** The storage had no space, so the pending records are in no group. */
  private rewriteNext = false;
  private live = 0;
  private freed = signal();
  /** The remembered tags, oldest first; tagBytes is their size. */
  private tags: (Tag & { stream: StreamState })[] = [];
  private tagBytes = 0;
  private failure: Error | undefined;
  private closed = false;
  /** Bytes in the storage, now and after the last rewrite. */
  private size = 0;
  private rewritten = 0;
  private readonly maxBytes: number;
  private readonly rememberTagsMs: number;

  private constructor(
    private readonly storage: JournalStorage,
    options: JournalOptions,
  ) {
    this.maxBytes = options.maxBytes ?? defaultMaxBytes;
    this.rememberTagsMs = options.rememberTagsMs ?? defaultRememberTagsMs;
  }

  /** Checks options, and throws where open would refuse them. */
  static validate(options: JournalOptions): void {
    const maxBytes = options.maxBytes ?? defaultMaxBytes;
    if (!(maxBytes >= minMaxBytes && maxBytes <= limitMaxBytes)) {
      throw new RangeError(`maxBytes is ${maxBytes}, must be ${minMaxBytes} to ${limitMaxBytes}`);
    }
  }

  /**
   * Opens the journal whose records were read from a storage, and rewrites it, so that what was read is known to be
   * stored.
   */
  static async open(storage: JournalStorage, records: Iterable<Decoded>, options: JournalOptions): Promise<Journal> {
    Journal.validate(options);
    const j = new Journal(storage, options);
    try {
      j.replay(records);
    } catch (e) {
      throw new JournalError("damaged", `${storage.name} is damaged: ${messageOf(e)}`, { cause: e });
    }
    await j.rewrite();
    for (const s of j.streams.values()) s.storedId = s.head.nextId;
    return j;
  }

  private replay(records: Iterable<Decoded>): void {
    const numbered = new Map<bigint, StreamState>();
    for (const r of records) {
      const s = numbered.get(r.number);
      if (r.kind === "stream") {
        const key = keyOf(r.name);
        if (s !== undefined || this.streams.has(key)) throw new Error(`stream ${r.number} is named twice`);
        const named = new StreamState(r.name, r.number);
        numbered.set(r.number, named);
        this.streams.set(key, named);
      } else if (s === undefined) {
        throw new Error(`a record of stream ${r.number}, which has no name`);
      } else {
        s.apply(r);
      }
    }
    for (const s of this.streams.values()) {
      this.live += s.live;
      for (const [tag, seconds] of s.remembered) {
        this.tags.push({ stream: s, tag, seconds });
        this.tagBytes += tagCost(tag);
      }
    }
    this.tags.sort((a, b) => (a.seconds < b.seconds ? -1 : a.seconds > b.seconds ? 1 : 0));
  }

  /** Returns what the journal holds. */
  contents(): { name: StreamName; head: Head; entries: Entry[] }[] {
    return [...this.streams.values()]
      .filter((s) => !s.empty)
      .map((s) => ({ name: s.name, head: { ...s.head }, entries: s.entries().map((e) => ({ ...e })) }));
  }

  /** Claims a stream for a Writer, until release, and returns the stream's state. */
  claim(name: StreamName, withdrawn?: Withdrawn): { head: Head; entries: Entry[] } {
    this.usable();
    let s = this.streams.get(keyOf(name));
    if (s === undefined) {
      s = new StreamState(name, ++this.numbers);
      this.streams.set(keyOf(name), s);
    }
    if (s.claimed) throw new JournalError("claimed", `stream ${describe(name)} is in use by another Writer`);
    s.claimed = true;
    if (withdrawn !== undefined) this.withdrawals.set(s, withdrawn);
    return { head: { ...s.head }, entries: s.entries().map((e) => ({ ...e })) };
  }

  /** Ends a claim. The stream's state stays in the journal. */
  release(name: StreamName): void {
    const s = this.streams.get(keyOf(name));
    if (s === undefined) return;
    s.claimed = false;
    this.withdrawals.delete(s);
  }

  /** Adds a record of a claimed stream. It does not wait for the storage: sync does. */
  append(name: StreamName, record: JournalRecord): void {
    this.usable();
    const s = this.streams.get(keyOf(name));
    if (s === undefined || !s.claimed) throw new Error(`stream ${describe(name)} is not claimed`);
    if (record.kind === "write") {
      // Check the tag first: waiting for space does not help if the tag waits for its own acknowledgement.
      this.checkTag(s, record.write.tag);
      this.room(StreamState.cost(record.write));
    }
    if (record.kind === "acknowledged" && this.rememberTagsMs > 0) {
      const tag = s.settled.get(record.id)?.tag;
      if (tag !== undefined) return this.remember(s, tag);
    }
    this.add(s, record);
  }

  private add(s: StreamState, record: JournalRecord): void {
    const before = s.live;
    s.apply(record);
    this.live += s.live - before;
    if (s.live < before) {
      this.freed.resolve();
      this.freed = signal();
    }
    if (!s.written) {
      this.buffer.stream(s.number, s.name);
      s.written = true;
    }
    this.buffer.record(s.number, record);
    if (record.kind === "write") this.dirty.add(s);
    this.appended++;
  }

  private room(cost: number): void {
    const limit = this.maxBytes / 4;
    if (cost > limit) {
      throw new JournalError("too-large", `the write needs ${cost} bytes, and a quarter of maxBytes is ${limit}`);
    }
    // A later rewrite stores the live records again, before the storage frees what it replaces.
    const lacking = this.storage.lacksRoom?.(this.buffer.length + this.live + this.tagBytes + 2 * cost);
    if (lacking !== undefined) throw new JournalError("no-space", `${this.storage.name}: ${lacking}`);
    if (this.live + cost > limit) {
      throw new JournalError("full", `${this.live} of ${limit} live bytes of the journal are taken`);
    }
  }

  /** Resolves the next time space becomes free. Get it before an append that may find no space. */
  get roomFreed(): Promise<void> {
    return this.freed.promise;
  }

  private remember(s: StreamState, tag: string): void {
    const seconds = BigInt(Math.floor(Date.now() / 1000));
    this.add(s, { kind: "remembered", seconds, tag });
    this.tags.push({ stream: s, tag, seconds });
    this.tagBytes += tagCost(tag);
    this.forgetTags();
  }

  /** Drops the oldest tags beyond the limit, but no others, because the clock that says they expired may be ahead. */
  private forgetTags(): void {
    let n = 0;
    for (const t of this.tags) {
      if (this.tagBytes <= this.maxBytes / 32) break;
      this.tagBytes -= tagCost(t.tag);
      // A tag that was used and acknowledged again has a later entry.
      if (t.stream.remembered.get(t.tag) === t.seconds) t.stream.remembered.delete(t.tag);
      n++;
    }
    this.tags.splice(0, n);
  }

  private remembers(seconds: bigint): boolean {
    return this.rememberTagsMs > 0 && Date.now() - Number(seconds) * 1000 < this.rememberTagsMs;
  }

  private checkTag(s: StreamState, tag: string): void {
    if (tag === "") return;
    const seconds = s.remembered.get(tag);
    if (s.tags.has(tag) || (seconds !== undefined && this.remembers(seconds))) {
      throw new JournalError("tag-in-use", `tag ${JSON.stringify(tag)} is in use: its write is under way or committed`);
    }
  }

  /**
   * Returns once everything that was appended before the call is durable. One flush serves all callers that arrived
   * during the previous flush. There is no timer. After a JournalError ("no-space") the writes in the flush are
   * withdrawn, and the next sync that finds space stores the rest.
   */
  async sync(): Promise<void> {
    const target = this.appended;
    while (this.durable < target) {
      if (this.failure !== undefined) throw this.failure;
      this.flushing ??= this.flush().finally(() => (this.flushing = undefined));
      const noSpace = await this.flushing;
      if (noSpace !== undefined) throw noSpace;
    }
  }

  private async flush(): Promise<JournalError | undefined> {
    const upTo = this.appended;
    const stored = [...this.dirty].map((s) => [s, s.head.nextId] as const);
    this.dirty = new Set();
    try {
      // The obsolete bytes must exceed the result of a rewrite by enough to make rewrites rare.
      const rewriteAt = this.maxBytes / 8 + 2 * Math.max(this.live, this.rewritten);
      if (this.rewriteNext || this.size + this.buffer.length > rewriteAt) {
        await this.rewrite();
      } else {
        const group = this.buffer.take();
        this.size += groupOverhead + group.length;
        await this.storage.extend(group);
      }
      this.durable = upTo;
      for (const [s, nextId] of stored) s.storedId = nextId;
    } catch (e) {
      if (e instanceof JournalError && e.reason === "no-space") {
        this.withdraw(stored.map(([s]) => s), e);
        return e;
      }
      // This error is final: it is unknown what was stored, and a later successful sync does not cover the bytes of a
      // failed one.
      this.failure = new JournalError(
        "failed",
        `${this.storage.name} failed: ${messageOf(e)}; ` +
          "writes that were not answered are unsettled until it is opened again",
        { cause: e },
      );
    }
    return undefined;
  }

  /**
   * Forgets the writes that are not stored; none of them was sent. This happens before another flush can store one of
   * them, because a write that is reported as refused must not reappear after a crash. Everything else goes into the
   * next flush.
   */
  private withdraw(flushed: StreamState[], reason: JournalError): void {
    this.rewriteNext = true;
    const streams = new Set([...flushed, ...this.dirty]);
    this.dirty = new Set();
    for (const s of streams) {
      const first = s.unsettled.find((e) => e.id >= s.storedId);
      if (first === undefined) continue;
      this.add(s, { kind: "dropped", id: first.id });
      this.withdrawals.get(s)?.(first.id, reason);
    }
  }

  /** Replaces everything in the storage by the current state, without unused streams. */
  private async rewrite(): Promise<void> {
    this.forgetTags();
    this.buffer.take(); // the snapshot includes its records
    const b = new RecordBuffer();
    this.numbers = 0n;
    for (const [key, s] of this.streams) {
      if (s.empty) {
        this.streams.delete(key);
        continue;
      }
      s.number = ++this.numbers;
      s.written = true;
      s.snapshot(b);
    }
    this.size = this.rewritten = groupOverhead + b.length;
    await this.storage.replace(b.take());
    this.rewriteNext = false;
  }

  /**
   * Durably removes the unsettled writes of a stream and its session. Call it when the application has handled the
   * writes of an UnsettledError: none of them is sent again, and the next Writer takes over the stream from its current
   * session.
   */
  async forget(name: StreamName): Promise<void> {
    this.usable();
    const s = this.streams.get(keyOf(name));
    if (s === undefined) return;
    if (s.claimed) {
      throw new JournalError("claimed", `close the Writer of ${describe(name)} before its writes are forgotten`);
    }
    const first = s.unsettled[0];
    if (first !== undefined) this.add(s, { kind: "dropped", id: first.id });
    this.add(s, { kind: "head", head: newHead(s.head.nextId) });
    await this.sync();
  }

  private usable(): void {
    if (this.closed) throw new ClosedError("the journal");
    if (this.failure !== undefined) throw this.failure;
  }

  /** Stores what is not yet stored and releases the lock. Close the Writers first. */
  async close(): Promise<void> {
    if (this.closed) return;
    try {
      await this.sync();
    } finally {
      this.closed = true;
      await this.flushing;
      await this.storage.close();
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}

/** keyOf returns a text that is unique per stream. The name of a scope may contain a slash. */
function keyOf(name: StreamName): string {
  return `${name.organization}\n${name.vault}\n${name.clientId}`;
}

/** describe returns the name of a stream for messages. */
function describe(name: StreamName): string {
  return `${name.organization}${name.vault === "" ? "" : `/${name.vault}`}, client id ${JSON.stringify(name.clientId)}`;
}

/** signal returns a promise and the function that resolves it. */
export function signal(): { promise: Promise<void>; resolve: () => void } {
  let resolve = (): void => {};
  const promise = new Promise<void>((r) => (resolve = r));
  return { promise, resolve };
}

/**
 * memoryJournal returns a journal that ends with the program. Successive Writers in a program continue from it, and
 * writes can have tags.
 */
export function memoryJournal(options: JournalOptions = {}): Promise<Journal> {
  const nothing = (): Promise<void> => Promise.resolve();
  const storage = { name: "the journal in memory", extend: nothing, replace: nothing, close: nothing };
  return Journal.open(storage, [], options);
}
