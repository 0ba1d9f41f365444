// The records of a journal, encoded as in client/JOURNAL.md, and the state of one stream.

/** StreamName names a stream, as the ledger does. */
export interface StreamName {
  readonly organization: string;
  /** Empty for the organization itself. */
  readonly vault: string;
  readonly clientId: string;
}

/** Head is the state of a stream without its writes. */
export interface Head {
  /** Id of the ledger that knows the session; 0 before the first session. */
  ledger: bigint;
  /** Session that numbers the writes; 0 before the first. */
  session: bigint;
  /** The attempt_id of an OpenSession that may be in flight: 16 bytes, or none. */
  attempt: Uint8Array;
  /** Id of the next write. */
  nextId: bigint;
  /** Sequence of the next write; 0 before the first session. */
  nextSequence: bigint;
}

export const newHead = (nextId = 0n): Head => ({
  ledger: 0n, session: 0n, attempt: new Uint8Array(0), nextId, nextSequence: 0n,
});

/** Write is a write that is about to be sent. */
export interface Write {
  /** Identifies the write within its stream in the journal, and is never reused. */
  id: bigint;
  sequence: bigint;
  /** How many bytes to keep free for the receipt. */
  reserve: number;
  key: string;
  /** The application's own name for the write; may be empty. */
  tag: string;
  /** Opaque to the journal: the encoded operations. */
  request: Uint8Array;
}

/** Entry is a write that a journal holds. */
export interface Entry extends Write {
  /** Committed and not yet acknowledged. */
  settled: boolean;
  /** The encoded receipt of a settled write. */
  receipt: Uint8Array;
}

/** JournalRecord is one change of a stream. The numbers of the kinds are part of the format. */
export type JournalRecord =
  | { kind: "head"; head: Head }
  | { kind: "write"; write: Write }
  | { kind: "settled"; id: bigint; receipt: Uint8Array }
  | { kind: "acknowledged"; id: bigint }
  | { kind: "dropped"; id: bigint }
  | { kind: "remembered"; seconds: bigint; tag: string };

const kinds = { stream: 1, head: 2, write: 3, settled: 4, acknowledged: 5, dropped: 6, remembered: 7 } as const;

const utf8 = new TextEncoder();
const utf8Strict = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** byteLength returns the length of a text in UTF-8, in bytes. */
export function byteLength(text: string): number {
  return text === "" ? 0 : utf8.encode(text).length;
}

/** RecordBuffer encodes consecutive records. */
export class RecordBuffer {
  private bytes = new Uint8Array(1024);
  private view = new DataView(this.bytes.buffer);
  length = 0;

  /** Returns the encoded records, and empties the buffer. */
  take(): Uint8Array {
    const taken = this.bytes.subarray(0, this.length);
    this.bytes = new Uint8Array(1024);
    this.view = new DataView(this.bytes.buffer);
    this.length = 0;
    return taken;
  }

  /** Appends the record that gives a stream its number. */
  stream(number: bigint, name: StreamName): void {
    const start = this.begin(kinds.stream, number);
    this.text(name.organization);
    this.text(name.vault);
    this.text(name.clientId);
    this.end(start);
  }

  /** Appends a record of the stream with a number. */
  record(number: bigint, r: JournalRecord): void {
    const start = this.begin(kinds[r.kind], number);
    switch (r.kind) {
      case "head":
        this.uvarint(r.head.ledger);
        this.uvarint(r.head.session);
        this.uvarint(BigInt(r.head.attempt.length));
        this.raw(r.head.attempt);
        this.uvarint(r.head.nextId);
        this.uvarint(r.head.nextSequence);
        break;
      case "write":
        this.uvarint(r.write.id);
        this.uvarint(r.write.sequence);
        this.uvarint(BigInt(r.write.reserve));
        this.text(r.write.key);
        this.text(r.write.tag);
        this.raw(r.write.request);
        break;
      case "settled":
        this.uvarint(r.id);
        this.raw(r.receipt);
        break;
      case "remembered":
        this.uvarint(r.seconds);
        this.text(r.tag);
        break;
      default:
        this.uvarint(r.id);
    }
    this.end(start);
  }

  private begin(kind: number, number: bigint): number {
    const start = this.length;
    this.room(5);
    this.length += 4; // of the record; set at its end
    this.bytes[this.length++] = kind;
    this.uvarint(number);
    return start;
  }

  private end(start: number): void {
    this.view.setUint32(start, this.length - start - 4, true);
  }

  private room(n: number): void {
    if (this.length + n <= this.bytes.length) return;
    const larger = new Uint8Array(Math.max(2 * this.bytes.length, this.length + n));
    larger.set(this.bytes.subarray(0, this.length));
    this.bytes = larger;
    this.view = new DataView(larger.buffer);
  }

  private raw(b: Uint8Array): void {
    this.room(b.length);
    this.bytes.set(b, this.length);
    this.length += b.length;
  }

  private text(s: string): void {
    const b = utf8.encode(s);
    this.uvarint(BigInt(b.length));
    this.raw(b);
  }

  private uvarint(v: bigint): void {
    this.room(10);
    while (v >= 0x80n) {
      this.bytes[this.length++] = Number(v & 0x7fn) | 0x80;
      v >>= 7n;
    }
    this.bytes[this.length++] = Number(v);
  }
}

/** Decoded is a record with the number of its stream, or the name that belongs to a number. */
export type Decoded = { number: bigint } & ({ kind: "stream"; name: StreamName } | JournalRecord);

/**
 * decodeRecords decodes records and refuses everything that RecordBuffer would not have written. The result shares no
 * memory with body.
 */
export function decodeRecords(body: Uint8Array): Decoded[] {
  const records: Decoded[] = [];
  for (let at = 0; at < body.length; ) {
    if (body.length - at < 4) throw new Error("a record ends in the middle");
    const n = new DataView(body.buffer, body.byteOffset + at).getUint32(0, true);
    at += 4;
    if (n > body.length - at) throw new Error("a record ends in the middle");
    records.push(decodeRecord(new Parser(body.subarray(at, at + n))));
    at += n;
  }
  return records;
}

const maxReserve = 1 << 20;
const maxSeconds = 1n << 40n; // far beyond any clock

function decodeRecord(p: Parser): Decoded {
  const kind = p.byte();
  const number = p.uvarint();
  const r = decodeFields(p, kind, number);
  if (p.rest > 0) throw new Error(`${p.rest} bytes too many in a record of kind ${kind}`);
  return r;
}

function decodeFields(p: Parser, kind: number, number: bigint): Decoded {
  switch (kind) {
    case kinds.stream:
      return { kind: "stream", number, name: { organization: p.text(), vault: p.text(), clientId: p.text() } };
    case kinds.head: {
      const ledger = p.uvarint();
      const session = p.uvarint();
      const attempt = p.bytes();
      if (attempt.length !== 0 && attempt.length !== 16) {
        throw new Error(`an attempt_id of ${attempt.length} bytes, want 16`);
      }
      return {
        kind: "head", number, head: { ledger, session, attempt, nextId: p.uvarint(), nextSequence: p.uvarint() },
      };
    }
    case kinds.write: {
      const id = p.uvarint();
      const sequence = p.uvarint();
      const reserve = p.uvarint();
      if (reserve > maxReserve) throw new Error(`a write that reserves ${reserve} bytes`);
      const write = { id, sequence, reserve: Number(reserve), key: p.text(), tag: p.text(), request: p.remainder() };
      return { kind: "write", number, write };
    }
    case kinds.settled:
      return { kind: "settled", number, id: p.uvarint(), receipt: p.remainder() };
    case kinds.acknowledged:
      return { kind: "acknowledged", number, id: p.uvarint() };
    case kinds.dropped:
      return { kind: "dropped", number, id: p.uvarint() };
    case kinds.remembered: {
      const seconds = p.uvarint();
      const tag = p.text();
      if (seconds > maxSeconds || tag === "") {
        throw new Error(`a remembered tag of ${tag.length} characters, acknowledged at second ${seconds}`);
      }
      return { kind: "remembered", number, seconds, tag };
    }
  }
  throw new Error(`a record of the unknown kind ${kind}`);
}

/** Parser reads fields from the front of a record. */
class Parser {
  private at = 0;
  constructor(private readonly b: Uint8Array) {}

  get rest(): number {
    return this.b.length - this.at;
  }

  byte(): number {
    if (this.rest === 0) throw new Error("a record ends in the middle");
    return this.b[this.at++]!;
  }

  uvarint(): bigint {
    let v = 0n;
    for (let shift = 0n; ; shift += 7n) {
      const b = this.byte();
      v |= BigInt(b & 0x7f) << shift;
      if (b < 0x80) {
        // A value has only one encoding, so that reading and writing are exact inverses.
        if (b === 0 && shift > 0n) throw new Error("a number with leading zeros");
        if (v >= 1n << 64n) throw new Error("a number of more than 64 bits");
        return v;
      }
      if (shift >= 63n) throw new Error("a number of more than 64 bits");
    }
  }

  bytes(): Uint8Array {
    const n = this.uvarint();
    if (n > BigInt(this.rest)) throw new Error("a record ends in the middle");
    this.at += Number(n);
    return this.b.slice(this.at - Number(n), this.at);
  }

  text(): string {
    return utf8Strict.decode(this.bytes());
  }

  remainder(): Uint8Array {
    const b = this.b.slice(this.at);
    this.at = this.b.length;
    return b;
  }
}

/** Tag is the tag of an acknowledged write. The write is gone; its tag is still in use. */
export interface Tag {
  tag: string;
  /** When it was acknowledged, in seconds since 1970. */
  seconds: bigint;
}

// An upper bound of the numbers, lengths and group headers around an entry's own bytes, including those of its later
// records.
const entryOverhead = 192;

const costOf = (e: Write & { receipt?: Uint8Array }): number =>
  entryOverhead + e.key.length + byteLength(e.tag) + e.request.length +
  Math.max(e.reserve, e.receipt?.length ?? 0);

/** StreamState is the state of one stream in a journal. */
export class StreamState {
  head: Head = newHead();
  claimed = false;
  /** Writes with smaller ids are durable. */
  storedId = 0n;
  /** Whether the current file has the record with the stream's number. */
  written = false;
  /** The entries waiting for their acknowledgement, by id, in id order. */
  readonly settled = new Map<bigint, Entry>();
  /** The entries not known to be committed, in sequence order. */
  unsettled: Entry[] = [];
  /** The ids of the entries with a tag. */
  readonly tags = new Map<string, bigint>();
  /** When tags without an entry were acknowledged, in seconds since 1970, oldest first. */
  readonly remembered = new Map<string, bigint>();
  /** The total cost of all entries. */
  live = 0;

  constructor(
    readonly name: StreamName,
    public number: bigint,
  ) {}

  /** All entries, in id order. */
  entries(): Entry[] {
    return [...this.settled.values(), ...this.unsettled];
  }

  /** Reports whether the stream has nothing to store. */
  get empty(): boolean {
    return (
      !this.claimed && this.head.session === 0n && this.head.attempt.length === 0 &&
      this.settled.size === 0 && this.unsettled.length === 0 && this.remembered.size === 0
    );
  }

  /** How many bytes of the journal a write may need until it is removed. */
  static cost(w: Write): number {
    return costOf(w);
  }

  /**
   * Applies one record, when it is appended and when it is read back. An error means that the record contradicts the
   * state; then nothing has changed.
   */
  apply(r: JournalRecord): void {
    switch (r.kind) {
      case "head":
        return this.applyHead(r.head);
      case "write":
        return this.applyWrite(r.write);
      case "settled":
        return this.applySettled(r.id, r.receipt);
      case "acknowledged": {
        this.remove(this.waiting(r.id));
        return;
      }
      case "dropped":
        return this.applyDropped(r.id);
      case "remembered": {
        const id = this.tags.get(r.tag);
        if (id !== undefined) this.remove(this.waiting(id));
        this.remembered.delete(r.tag); // the newest must be last
        this.remembered.set(r.tag, r.seconds);
      }
    }
  }

  private waiting(id: bigint): Entry {
    const e = this.settled.get(id);
    if (e === undefined) throw new Error(`acknowledges write ${id}, which is not settled and waiting`);
    return e;
  }

  private applyHead(h: Head): void {
    if (h.nextId < this.head.nextId) {
      throw new Error(`the next write's id goes back from ${this.head.nextId} to ${h.nextId}`);
    }
    if (this.unsettled.length > 0 && h.nextSequence !== this.head.nextSequence) {
      throw new Error(
        `the next sequence becomes ${h.nextSequence} instead of ${this.head.nextSequence} while writes are unsettled`,
      );
    }
    if (h.session !== 0n && h.nextSequence === 0n) throw new Error(`session ${h.session} has no next sequence`);
    this.head = { ...h, attempt: h.attempt.slice() };
  }

  private applyWrite(w: Write): void {
    if (w.id !== this.head.nextId) throw new Error(`got write ${w.id}, want write ${this.head.nextId}`);
    if (w.sequence !== this.head.nextSequence || w.sequence === 0n) {
      throw new Error(`got sequence ${w.sequence}, want sequence ${this.head.nextSequence}`);
    }
    if (w.tag !== "") {
      if (this.tags.has(w.tag)) throw new Error(`tag ${JSON.stringify(w.tag)} is in use`);
      this.tags.set(w.tag, w.id);
      this.remembered.delete(w.tag); // it had expired
    }
    this.unsettled.push({ ...w, settled: false, receipt: new Uint8Array(0) });
    this.live += costOf(w);
    this.head.nextId++;
    this.head.nextSequence++;
  }

  private applySettled(id: bigint, receipt: Uint8Array): void {
    const e = this.unsettled[0];
    if (e?.id !== id) throw new Error(`settles write ${id}, which is not the first unsettled one`);
    this.unsettled.shift();
    this.live -= costOf(e);
    if (e.tag === "") return;
    e.settled = true;
    e.receipt = receipt;
    this.live += costOf(e);
    this.settled.set(id, e);
  }

  private applyDropped(id: bigint): void {
    const i = this.unsettled.findIndex((e) => e.id === id);
    if (i < 0) throw new Error(`drops write ${id}, which is not unsettled`);
    this.head.nextSequence = this.unsettled[i]!.sequence;
    for (const e of this.unsettled.splice(i)) this.forget(e);
  }

  private remove(e: Entry): void {
    this.settled.delete(e.id);
    this.forget(e);
  }

  private forget(e: Entry): void {
    this.live -= costOf(e);
    if (e.tag !== "") this.tags.delete(e.tag);
  }

  /** Encodes records that recreate the stream's state. */
  snapshot(b: RecordBuffer): void {
    b.stream(this.number, this.name);
    // The head before an entry sets its position, because acknowledged entries leave gaps.
    const at = { ...newHead(), ledger: this.head.ledger, session: this.head.session };
    for (const e of this.entries()) {
      if (at.nextId !== e.id || at.nextSequence !== e.sequence) {
        at.nextId = e.id;
        at.nextSequence = e.sequence;
        b.record(this.number, { kind: "head", head: at });
      }
      b.record(this.number, { kind: "write", write: e });
      at.nextId++;
      at.nextSequence++;
      if (e.settled) b.record(this.number, { kind: "settled", id: e.id, receipt: e.receipt });
    }
    for (const [tag, seconds] of this.remembered) b.record(this.number, { kind: "remembered", seconds, tag });
    b.record(this.number, { kind: "head", head: this.head });
  }
}
