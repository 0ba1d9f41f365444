// The sender carries the writes of all Writers of a Client to the server. A few writes go in calls of WriteBatch. A
// stream has one call in flight: writes that arrive meanwhile go with the next one. When there are many writes, the
// sender opens a WriteStream, on which a Writer's writes follow each other without waiting for answers. If there is no
// WriteStream, or it breaks, the sender uses calls again.

import { create, type UnknownField } from "@bufbuild/protobuf";
import { BinaryWriter, WireType } from "@bufbuild/protobuf/wire";
import { Code, errorFromConnect, LedgerError, messageOf, ProtocolError } from "./errors.js";
import {
  type WriteBatchRequest, WriteBatchRequestSchema, type WriteBatchResponse, type WriteResult, WriteStreamRequestSchema,
} from "./gen/seqledger/v1/ledger_pb.js";
import type { Pending } from "./pending.js";
import { backoff, Patience } from "./retry.js";
import type { StreamEvents, WriteStream } from "./stream.js";
import type { Writer } from "./writer.js";

// Concurrent calls. Browsers open six connections to a server, which leaves some for reads.
const maxCalls = 4;
// Limits of one message. A larger write is sent in its own message. The server refuses a message of more than 16,384
// operations.
const messageWrites = 1000;
const messageOperations = 10_000;
const messageBytes = 1 << 20;
// How long a server's smaller limit stays in use.
const limitMemoryMs = 10 * 60_000;
// This many calls within a second open a stream.
const manyCalls = 16;
const streamCallsMs = 1000;
// A stream without writes is closed, because it would keep a Node program from ending.
const streamIdleMs = 10_000;
// The server must answer within this time, or the connection is considered dead.
const streamSilenceMs = 30_000;
const streamCheckMs = 5000;
// The wait between attempts to open a stream, doubled each time.
const streamRetryFirstMs = 1000;
const streamRetryMaxMs = 5 * 60_000;

/** A write in flight, with its Writer. */
interface Sent {
  writer: Writer;
  write: Pending;
}

/** A Message holds the writes that are sent together. */
interface Message {
  writes: Sent[];
  writers: Set<Writer>;
  bytes: number;
}

/** Routes are the ways to reach a server. openStream is absent if there is no WebSocket. */
export interface Routes {
  writeBatch(request: WriteBatchRequest): Promise<WriteBatchResponse>;
  /** Whether a call that is made once may reach the server more than once. */
  callsRepeat: boolean;
  openStream?: (events: StreamEvents) => Promise<WriteStream>;
}

/** Sender sends for all Writers of a Client. */
export class Sender {
  /** The Writers with something to send, each at most once. */
  private ready: Writer[] = [];
  private calls = 0;
  private scheduled = false;
  /** Set while nothing is sent, because the server could not accept a write. */
  private pause: ReturnType<typeof setTimeout> | undefined;
  private failures = 0;
  private readonly denied = new Patience();
  /** The message size that the server accepts, as far as known; it applies until limitEnds. */
  private limit = messageBytes;
  private limitEnds = 0;
  private progress = false;
  private retryAfterMs = -1;
  private closed = false;

  /** The open stream, and its unanswered writes, which begin at index first. */
  private stream: WriteStream | undefined;
  private flying: Sent[] = [];
  private first = 0;
  private opening = false;
  private recentCalls = 0;
  private recentSince = 0;
  private streamFailures = 0;
  /** No stream is opened before this time. */
  private streamAfter = 0;
  /** When the stream was last used, and when it last answered. */
  private usedAt = 0;
  private answeredAt = 0;
  private check: ReturnType<typeof setInterval> | undefined;

  constructor(
    private readonly routes: Routes,
    private readonly streamCalls = manyCalls,
  ) {}

  /** Queues a Writer that may have something to send. */
  enlist(w: Writer): void {
    if (!w.queued && !w.sending) {
      w.queued = true;
      this.ready.push(w);
    }
    this.schedule();
  }

  /** Sends soon, because more writes are likely to follow at once. */
  private schedule(): void {
    if (this.scheduled || this.pause !== undefined || this.closed || this.ready.length === 0) return;
    this.scheduled = true;
    queueMicrotask(() => {
      this.scheduled = false;
      if (this.stream !== undefined) this.sendOnStream(this.stream);
      else this.sendInCalls();
    });
  }

  private sendInCalls(): void {
    while (this.calls < maxCalls && this.pause === undefined) {
      const message = this.collect();
      if (message.writes.length === 0) return;
      for (const w of message.writers) w.sending = true;
      if (this.routes.callsRepeat) for (const { write } of message.writes) write.doubtful = true;
      void this.send(message);
    }
  }

  private sendOnStream(stream: WriteStream): void {
    while (stream.ready && this.pause === undefined) {
      const message = this.collect();
      if (message.writes.length === 0) return;
      this.usedAt = performance.now();
      if (this.flying.length === this.first) this.answeredAt = this.usedAt;
      this.flying.push(...message.writes);
      stream.send(encodeStreamRequest(message));
    }
  }

  /** Fills a message with waiting writes, fairly between Writers. */
  private collect(): Message {
    if (performance.now() > this.limitEnds) this.limit = messageBytes;
    const message: Message = { writes: [], writers: new Set(), bytes: 0 };
    let operations = 0;
    for (let w = this.ready.shift(); w !== undefined; w = this.ready.shift()) {
      w.queued = false;
      for (let p = w.peek(); p !== undefined; p = w.peek()) {
        const full = message.bytes + p.size > this.limit || operations + p.count > messageOperations;
        if (message.writes.length === messageWrites || (message.writes.length > 0 && full)) {
          // In calls, a Writer with a write in this message continues when the message is answered.
          if (this.stream !== undefined || !message.writers.has(w)) {
            w.queued = true;
            this.ready.push(w);
          }
          return message;
        }
        w.take(p);
        message.writers.add(w);
        message.writes.push({ writer: w, write: p });
        message.bytes += p.size;
        operations += p.count;
      }
    }
    return message;
  }

  private async send(message: Message): Promise<void> {
    this.calls++;
    this.noteCall();
    let failure: LedgerError | undefined;
    let answered = 0;
    try {
      const { results } = await this.routes.writeBatch(encodeBatch(message));
      if (results.length !== message.writes.length) {
        throw new ProtocolError(`${results.length} results for ${message.writes.length} writes`);
      }
      for (const { writer, write } of message.writes) {
        writer.answered(write, results[answered]!);
        answered++;
        this.noteAnswer(write);
      }
    } catch (e) {
      failure = e instanceof ProtocolError ? new LedgerError(Code.Internal, messageOf(e)) : errorFromConnect(e);
    }
    this.calls--;
    for (const w of message.writers) w.sending = false;
    if (failure !== undefined) this.failed(message.writes.slice(answered), message.bytes, failure);
    this.settlePause(failure);
    for (const w of message.writers) this.enlist(w);
  }

  private noteAnswer(write: Pending): void {
    if (write.verdict === "retry") this.retryAfterMs = Math.max(this.retryAfterMs, write.refusal!.retryAfterMs);
    else this.progress = true;
  }

  /** Handles the unanswered writes of a message, or of a stream. */
  private failed(open: Sent[], bytes: number, e: LedgerError): void {
    if (e.refusesFrame && open.length > 1) {
      this.limit = bytes / 2;
      this.limitEnds = performance.now() + limitMemoryMs;
    } else if (e.refusesFrame && open.length === 1) {
      open[0]!.writer.frameRefused(open[0]!.write, e);
      return;
    }
    for (const { writer, write } of open) writer.lost(write, !e.neverSent);
    if (this.denied.isOver(e) || (e.isFinal && !e.refusesFrame)) {
      for (const w of new Set(open.map(({ writer }) => writer))) w.abandon(e);
    }
  }

  /** Waits before the next message if the server could not accept this one. */
  private settlePause(e: LedgerError | undefined): void {
    if (this.progress) {
      this.failures = 0;
      this.denied.reset();
    }
    const retry = this.retryAfterMs >= 0 || (e !== undefined && !e.refusesFrame);
    const wait = backoff(this.failures, Math.max(this.retryAfterMs, e?.retryAfterMs ?? 0));
    this.progress = false;
    this.retryAfterMs = -1;
    if (!retry || this.pause !== undefined || this.closed) return;
    this.failures++;
    this.pause = setTimeout(() => {
      this.pause = undefined;
      this.schedule();
    }, wait);
  }

  // The stream.

  /** Opens a stream if there are many calls. Calls continue until it is open. */
  private noteCall(): void {
    const now = performance.now();
    if (now - this.recentSince > streamCallsMs) {
      this.recentSince = now;
      this.recentCalls = 0;
    }
    this.recentCalls++;
    if (this.recentCalls < this.streamCalls || this.routes.openStream === undefined) return;
    if (this.opening || this.stream !== undefined || now < this.streamAfter) return;
    this.opening = true;
    void this.open(this.routes.openStream);
  }

  private async open(openStream: (events: StreamEvents) => Promise<WriteStream>): Promise<void> {
    let stream: WriteStream | undefined;
    const events: StreamEvents = {
      opened: () => {
        this.opening = false;
        if (this.closed) {
          stream!.close();
          return;
        }
        // A call in flight has its Writers' writes in order; those Writers continue when it is answered.
        this.stream = stream;
        this.streamFailures = 0;
        this.usedAt = performance.now();
        this.check = setInterval(() => this.checkStream(), streamCheckMs);
        (this.check as { unref?: () => void }).unref?.();
        this.schedule();
      },
      results: (results) => this.streamAnswered(results),
      ended: (error) => {
        this.opening = false;
        this.streamEnded(stream, error);
      },
    };
    try {
      stream = await openStream(events);
    } catch {
      events.ended(undefined); // because of the token, or the platform
    }
  }

  private streamAnswered(results: WriteResult[]): void {
    this.usedAt = this.answeredAt = performance.now();
    for (const result of results) {
      const sent = this.flying[this.first];
      if (sent === undefined) throw new ProtocolError("an answer to a write that was not sent");
      sent.writer.answered(sent.write, result);
      this.first++;
      this.noteAnswer(sent.write);
    }
    if (this.first === this.flying.length || this.first > 10_000) {
      this.flying.splice(0, this.first);
      this.first = 0;
    }
    this.settlePause(undefined);
    this.schedule();
  }

  private streamEnded(stream: WriteStream | undefined, error: LedgerError | undefined): void {
    const wasOpen = this.stream !== undefined && this.stream === stream;
    const wait = Math.min(streamRetryFirstMs * 2 ** this.streamFailures, streamRetryMaxMs);
    this.streamFailures = wasOpen ? 0 : Math.min(this.streamFailures + 1, 30);
    this.streamAfter = performance.now() + wait;
    if (!wasOpen) return;
    const open = this.flying.slice(this.first);
    this.forgetStream();
    if (open.length === 0) {
      this.schedule();
      return;
    }
    const e = error ?? new LedgerError(Code.Unavailable, "the stream of writes is broken");
    if (e.refusesFrame) {
      // It is unknown here which message it was. Calls find out.
      this.streamAfter = performance.now() + limitMemoryMs;
      for (const { writer, write } of open) writer.lost(write, true);
    } else {
      this.failed(open, 0, e);
    }
    this.settlePause(e);
    this.schedule();
  }

  private forgetStream(): void {
    clearInterval(this.check);
    this.stream = undefined;
    this.flying = [];
    this.first = 0;
  }

  /** Ends a stream that is idle, or whose server does not answer. */
  private checkStream(): void {
    const { stream } = this;
    if (stream === undefined) return;
    const now = performance.now();
    const idle = this.flying.length === this.first;
    if (idle ? now - this.usedAt < streamIdleMs : now - this.answeredAt < streamSilenceMs) return;
    stream.close();
    if (idle) this.forgetStream();
    else this.streamEnded(stream, undefined);
  }

  /** @internal Whether writes go over a stream. */
  get streams(): boolean {
    return this.stream !== undefined;
  }

  /** Ends a pause early, because the network is back. */
  wake(): void {
    this.streamAfter = 0;
    if (this.pause === undefined) return;
    clearTimeout(this.pause);
    this.pause = undefined;
    this.schedule();
  }

  close(): void {
    this.closed = true;
    clearTimeout(this.pause);
    this.stream?.close();
    this.forgetStream();
  }
}

/**
 * encodeWrite returns a write with the bytes of its submission, because encoding decoded operations again might change
 * one.
 */
function encodeWrite({ writer, write }: Sent): Uint8Array {
  return new BinaryWriter()
    .raw(writer.stream)
    .tag(3, WireType.Varint).uint64(write.session)
    .tag(4, WireType.Varint).uint64(write.sequence)
    .tag(5, WireType.LengthDelimited).string(write.key)
    .raw(write.encoded)
    .finish();
}

/** encodeBatch returns a request that carries the writes as unknown fields. */
function encodeBatch(message: Message): WriteBatchRequest {
  const request = create(WriteBatchRequestSchema);
  const no = WriteBatchRequestSchema.field.writes.number;
  request.$unknown = message.writes.map((sent): UnknownField => {
    return { no, wireType: WireType.LengthDelimited, data: new BinaryWriter().bytes(encodeWrite(sent)).finish() };
  });
  return request;
}

function encodeStreamRequest(message: Message): Uint8Array {
  const request = new BinaryWriter();
  const no = WriteStreamRequestSchema.field.writes.number;
  for (const sent of message.writes) request.tag(no, WireType.LengthDelimited).bytes(encodeWrite(sent));
  return request.finish();
}
