// A WriteStream over a WebSocket: messages of Connect's streaming protocol, one after another in both directions.
// docs/clients.md describes it byte by byte.

import { fromBinary } from "@bufbuild/protobuf";
import { endStreamFromJson } from "@connectrpc/connect/protocol-connect";
import { Code, errorFromConnect, LedgerError, messageOf, ProtocolError } from "./errors.js";
import { type WriteResult, WriteStreamResponseSchema } from "./gen/seqledger/v1/ledger_pb.js";

/** WebSocketConstructor is the part of the platform's WebSocket that is used. */
export type WebSocketConstructor = new (url: string, protocols: string[]) => WebSocket;

/** StreamEvents are what a WriteStream reports to its owner, until it has ended. */
export interface StreamEvents {
  opened(): void;
  /** Answers, in the order of the writes. If it throws, the stream ends. */
  results(results: WriteResult[]): void;
  /** The stream has ended, and unanswered writes will get no answer. error is the reason, if known. */
  ended(error: LedgerError | undefined): void;
}

const headerBytes = 5;
const flagEnd = 2;
// Beyond this the network does not keep up, and more data would only wait in memory.
const maxBufferedBytes = 4 << 20;
const encoder = new TextEncoder();

/** WriteStream sends messages of writes on one connection. The owner must close it. */
export class WriteStream {
  private readonly socket: WebSocket;
  private isOpen = false;
  private over = false;

  constructor(
    url: string, protocols: string[], webSocket: WebSocketConstructor, private readonly events: StreamEvents,
  ) {
    this.socket = new webSocket(url, protocols);
    this.socket.binaryType = "arraybuffer";
    this.socket.onopen = () => {
      if (this.over) return;
      this.isOpen = true;
      events.opened();
    };
    this.socket.onmessage = ({ data }) => this.received(data);
    // An error is followed by close, which ends the stream.
    this.socket.onerror = () => {};
    this.socket.onclose = () => this.end(undefined);
  }

  /** Whether a message can be sent now. */
  get ready(): boolean {
    return this.isOpen && !this.over && this.socket.bufferedAmount < maxBufferedBytes;
  }

  /** Sends a WriteStreamRequest. */
  send(request: Uint8Array): void {
    this.socket.send(envelope(0, request));
  }

  /** Ends the stream. Unanswered writes may still be committed. */
  close(): void {
    if (this.over) return;
    this.over = true;
    if (this.isOpen) this.socket.send(envelope(flagEnd, encoder.encode("{}")));
    this.socket.close();
  }

  private end(error: LedgerError | undefined): void {
    if (this.over) return;
    this.over = true;
    this.socket.close();
    this.events.ended(error);
  }

  private received(data: unknown): void {
    if (this.over) return;
    try {
      if (!(data instanceof ArrayBuffer)) throw new ProtocolError("a text message on a stream of writes");
      for (let rest = new Uint8Array(data); rest.length > 0 && !this.over; ) {
        const length = rest.length < headerBytes ? -1 : new DataView(rest.buffer, rest.byteOffset).getUint32(1);
        if (length < 0 || length > rest.length - headerBytes) throw new ProtocolError("a message ends in the middle");
        this.message(rest[0]!, rest.subarray(headerBytes, headerBytes + length));
        rest = rest.subarray(headerBytes + length);
      }
    } catch (e) {
      // The following answers cannot be matched to writes any more, so the remaining writes get none.
      this.end(new LedgerError(Code.Internal, messageOf(e)));
    }
  }

  private message(flags: number, content: Uint8Array): void {
    if ((flags & flagEnd) === 0) {
      this.events.results(fromBinary(WriteStreamResponseSchema, content).results);
      return;
    }
    const { error } = endStreamFromJson(content);
    if (error === undefined) {
      this.end(undefined);
      return;
    }
    const failure = errorFromConnect(error);
    failure.wire = true; // no intermediary ends a stream in this form
    this.end(failure);
  }
}

function envelope(flags: number, content: Uint8Array): Uint8Array<ArrayBuffer> {
  const bytes = new Uint8Array(headerBytes + content.length);
  bytes[0] = flags;
  new DataView(bytes.buffer).setUint32(1, content.length);
  bytes.set(content, headerBytes);
  return bytes;
}

/** bearerProtocol returns the sub-protocol that carries a token, because a page cannot set headers. */
export function bearerProtocol(token: string): string {
  const base64 = btoa(String.fromCharCode(...encoder.encode(token)));
  return `bearer.${base64.replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "")}`;
}
