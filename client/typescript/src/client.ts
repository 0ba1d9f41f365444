/// <reference lib="esnext.disposable" preserve="true" />

// A Client makes calls, and owns the Writers that share its connections.

import {
  create, type DescMessage, type DescMethodUnary, type MessageInitShape, type MessageShape,
} from "@bufbuild/protobuf";
import type { Transport } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-web";
import { appendOperations, BlockJoiner, Watch } from "./blocks.js";
import { ClosedError, Code, errorFromConnect, ProtocolError } from "./errors.js";
import { AdminService } from "./gen/seqledger/v1/admin_pb.js";
import {
  BlockContent, type GetTransactionResponse, LedgerService, type OpenSessionRequestSchema, type OpenSessionResponse,
  type WriteBatchRequest, type WriteBatchResponse,
} from "./gen/seqledger/v1/ledger_pb.js";
import type { BlockPosition } from "./gen/seqledger/v1/types_pb.js";
import { Outage } from "./outage.js";
import { backoff, sleep } from "./retry.js";
import { Sender } from "./sender.js";
import { bearerProtocol, type StreamEvents, type WebSocketConstructor, WriteStream } from "./stream.js";
import {
  type Block, type BlockHeader, type ClientState, clientStateOf, type Entity, entityOf, headerOf, instantOf,
  type MerkleProof, proofOf, type Relationship, type Scope, type Status, type Transaction, transactionOf,
} from "./types.js";
import { Writer, type WriterOptions } from "./writer.js";

/** ClientOptions configure a Client. baseUrl is required. */
export interface ClientOptions {
  /** The URL of the server, with http:// or https://. */
  baseUrl: string;
  /**
   * Returns the API key or session token that is sent as the bearer token of every call. It is called often, so it
   * should cache its result. Renewing a token does not end a Writer.
   */
  token?: () => string | Promise<string>;
  /** Allows the token to be sent over http:// to a host other than this machine. */
  cleartextToken?: boolean;
  /** Replaces the transport, which uses fetch. It must use the binary format. */
  transport?: Transport;
  /**
   * Whether a call that is made once may reach the server twice. The default is true everywhere but in Node: browsers
   * and Deno silently resend a fetch request when a reused connection breaks, and a transport on top of fetch cannot
   * prevent that. A refusal over such a transport costs one more call, to open a session that fences the copies. Set
   * false only for a transport that sends each request at most once, and true for a transport in Node that may resend.
   */
  callsRepeat?: boolean;
  /**
   * Receives a sentence once the server has not answered for three seconds: that it cannot be reached, or that it does
   * not allow the origin of this page. Calls and Writers continue to retry. The default is console.warn.
   */
  log?: (problem: string) => void;
  /**
   * Replaces the platform's WebSocket, which carries writes when there are many; false disables it. Node has a
   * WebSocket from version 22 on. With a custom transport the default is none.
   */
  webSocket?: WebSocketConstructor | false;
  /** @internal How many calls within a second open a stream. */
  streamCalls?: number;
}

/** CallOptions are the options of one call. */
export interface CallOptions {
  /** Ends the call and its retries. */
  signal?: AbortSignal;
  /** Bounds one attempt, in milliseconds; 30 seconds by default. */
  timeoutMs?: number;
}

const attemptMs = 30_000;

/** createClient returns a client of one ledger. It connects on first use. */
export function createClient(options: ClientOptions): Client {
  return new Client(options);
}

/** Client makes calls. Each call is retried until its answer is final or its signal ends it. */
export class Client {
  /** @internal */ readonly sender: Sender;
  private readonly transport: Transport;
  private readonly outage: Outage;
  private readonly writers = new Set<Writer>();
  private readonly abort = new AbortController();
  private readonly stopListening: () => void;

  constructor(private readonly options: ClientOptions) {
    const base = new URL(options.baseUrl);
    if (base.protocol !== "http:" && base.protocol !== "https:") {
      throw new TypeError(`ClientOptions.baseUrl is ${options.baseUrl}, and must begin with http:// or https://`);
    }
    const cleartext = base.protocol === "http:" && !isLoopback(base.hostname);
    if (options.token !== undefined && cleartext && options.cleartextToken !== true) {
      throw new TypeError(
        `ClientOptions.token would go to ${base.host} in clear text; use https://, or set cleartextToken`,
      );
    }
    this.transport = options.transport ?? createConnectTransport({ baseUrl: options.baseUrl, useBinaryFormat: true });
    this.outage = new Outage(options.baseUrl, options.log ?? ((problem) => console.warn(problem)));
    const standard = globalThis.WebSocket as WebSocketConstructor | undefined;
    const webSocket = options.webSocket ?? (options.transport === undefined ? standard : undefined);
    this.sender = new Sender({
      writeBatch: (request) => this.writeBatch(request),
      callsRepeat: options.callsRepeat ?? fetchRepeats(globalThis),
      openStream: webSocket === undefined || webSocket === false
        ? undefined
        : (events) => this.openStream(webSocket, events),
    }, options.streamCalls);
    this.stopListening = whenBack(() => this.wake());
  }

  /**
   * Opens a session and returns a Writer that continues after the stream's last committed sequence. Older sessions are
   * fenced: no copy of their writes can commit any more.
   *
   * With a journal it recovers the writes in the journal; see Writer.recovered. An UnsettledError means that this is
   * not possible: the stream was evicted or fenced, or the ledger is another one. In that case nothing was sent again.
   * After Journal.forget the next openWriter begins without those writes.
   */
  openWriter(options: WriterOptions): Promise<Writer> {
    if (this.abort.signal.aborted) return Promise.reject(new ClosedError("the Client"));
    return Writer.open(this, options);
  }

  /** Returns the state of a stream. */
  async getClientState(scope: Scope, clientId: string, options: CallOptions = {}): Promise<ClientState> {
    const { state } = await this.call(LedgerService.method.getClientState, { scope, clientId }, options);
    return clientStateOf(state!);
  }

  /** Reads one entity; isNotFound reports whether it is absent. */
  async getEntity(scope: Scope, key: string, options: CallOptions = {}): Promise<Entity> {
    const { entity } = await this.call(LedgerService.method.getEntity, { scope, key }, options);
    return entityOf(entity!);
  }

  /** Reads one committed write; isNotFound reports whether there is none. A large one is read in parts. */
  async getTransaction(txId: string, options: CallOptions = {}): Promise<Transaction> {
    return transactionOf((await this.readTransaction(txId, false, options)).transaction!);
  }

  /** Reads one committed write with the header of its block and its proof; see verifyTransaction. */
  async getTransactionWithProof(
    txId: string, options: CallOptions = {},
  ): Promise<{ transaction: Transaction; header: BlockHeader; proof: MerkleProof }> {
    const { transaction, blockHeader, proof } = await this.readTransaction(txId, true, options);
    if (blockHeader === undefined || proof === undefined) throw new ProtocolError("an answer without the proof");
    return { transaction: transactionOf(transaction!), header: headerOf(blockHeader), proof: proofOf(proof)! };
  }

  /**
   * Returns a receipt of a transaction that verifies offline: the text of a file for verifyReceipt. It waits for the
   * next checkpoint of the ledger, some ten seconds.
   */
  async getReceipt(txId: string, options: CallOptions = {}): Promise<string> {
    const { receipt } = await this.call(LedgerService.method.getReceipt, { txId }, options);
    return new TextDecoder().decode(receipt);
  }

  private async readTransaction(
    txId: string, includeProof: boolean, options: CallOptions,
  ): Promise<GetTransactionResponse> {
    const method = LedgerService.method.getTransaction;
    const whole = await this.call(method, { txId, includeProof, parts: true }, options);
    const t = whole.transaction;
    if (t === undefined || t.firstOperation !== 0) {
      throw new ProtocolError("an answer without the beginning of the transaction");
    }
    for (let next = whole.nextOperation; next !== 0; ) {
      if (next !== t.operations.length) {
        throw new ProtocolError(`a part of transaction ${txId} is followed by operation ${next}, and ends elsewhere`);
      }
      const part = await this.call(method, { txId, parts: true, firstOperation: next }, options);
      appendOperations(t, part.transaction);
      next = part.nextOperation;
    }
    return whole;
  }

  /** Reads one block; isNotFound reports whether there is none. A large one is read in parts. */
  async getBlock(scope: Scope, height: bigint, options: CallOptions = {}): Promise<Block> {
    const joiner = new BlockJoiner();
    for (let start: BlockPosition | undefined; ; start = joiner.next) {
      const request = { scope, height, content: BlockContent.PARTS, start };
      const { block: part } = await this.call(LedgerService.method.getBlock, request, options);
      const block = joiner.add(part);
      if (block === undefined) continue;
      if (block.header.height !== height) throw new ProtocolError(`got block ${block.header.height}, want ${height}`);
      return block;
    }
  }

  /** Yields the entities of a scope whose keys begin with a prefix, in key order. */
  async *listEntities(scope: Scope, prefix = "", options: CallOptions = {}): AsyncGenerator<Entity> {
    for (let pageToken = ""; ; ) {
      const page = await this.call(LedgerService.method.listEntities, { scope, prefix, pageToken }, options);
      yield* page.entities.map(entityOf);
      pageToken = page.nextPageToken;
      if (pageToken === "") return;
    }
  }

  /** Yields relationships of a scope: all, those of a resource, or those of one relation of a resource. */
  async *listRelationships(
    scope: Scope, filter: { resource?: string; relation?: string } = {}, options: CallOptions = {},
  ): AsyncGenerator<Relationship> {
    for (let pageToken = ""; ; ) {
      const request = { scope, ...filter, pageToken };
      const page = await this.call(LedgerService.method.listRelationships, request, options);
      for (const { resource, relation, subject } of page.relationships) yield { resource, relation, subject };
      pageToken = page.nextPageToken;
      if (pageToken === "") return;
    }
  }

  /**
   * Yields the blocks of a scope in order and without gaps, from a height on (1 by default), until the signal ends it
   * or the caller leaves the loop. It checks each block's hash, and that the block follows from the previous one. After
   * a connection breaks it continues at the next height.
   *
   * An OtherLedgerError means that the ledger's chain differs from the blocks already yielded, or is shorter, as after
   * a restore from a backup.
   */
  watch(scope: Scope, options: { fromHeight?: bigint; signal?: AbortSignal } = {}): AsyncGenerator<Block> {
    const watch = new Watch(scope, options.fromHeight ?? 1n, {
      open: async (request, signal) => {
        const headers = await this.headers();
        async function* once(): AsyncGenerator<typeof request> {
          yield request;
        }
        const method = LedgerService.method.watch;
        return (await this.noting(signal, this.transport.stream(method, signal, undefined, headers, once()))).message;
      },
      hashOf: async (height, signal) => {
        const request = { scope, fromHeight: height, pageSize: 1 };
        return (await this.call(LedgerService.method.listBlocks, request, { signal })).blocks[0]?.hash;
      },
    });
    return watch.blocks(this.signalOf(options.signal));
  }

  private signalOf(signal: AbortSignal | undefined): AbortSignal {
    return signal === undefined ? this.abort.signal : AbortSignal.any([this.abort.signal, signal]);
  }

  /** Describes the server. */
  async status(options: CallOptions = {}): Promise<Status> {
    const { status } = await this.call(AdminService.method.getStatus, {}, options);
    return {
      version: status!.version, ledgerId: status!.ledgerId, index: status!.index,
      ledgerTime: instantOf(status!.ledgerTime),
    };
  }

  /** @internal */
  openSession(
    request: MessageInitShape<typeof OpenSessionRequestSchema>, options: CallOptions,
  ): Promise<OpenSessionResponse> {
    return this.call(LedgerService.method.openSession, request, options);
  }

  /** Sends a batch once: the Writers decide about retries. */
  private async writeBatch(request: WriteBatchRequest): Promise<WriteBatchResponse> {
    const method = LedgerService.method.writeBatch;
    const headers = await this.headers();
    const { signal } = this.abort;
    return (await this.noting(signal, this.transport.unary(method, signal, attemptMs, headers, request))).message;
  }

  /** Returns the answer of a call that is repeated until it succeeds, and tells outage what became of it. */
  private async noting<T>(signal: AbortSignal, call: Promise<T>): Promise<T> {
    try {
      const answer = await call;
      this.outage.over();
      return answer;
    } catch (thrown) {
      const e = errorFromConnect(thrown);
      if (!e.worthRetrying) this.outage.over();
      else if (!signal.aborted) this.outage.failed(e);
      throw thrown;
    }
  }

  private async openStream(webSocket: WebSocketConstructor, events: StreamEvents): Promise<WriteStream> {
    const token = await this.token();
    const procedure = `${LedgerService.typeName}/${LedgerService.method.writeStream.name}`;
    const url = new URL(`${this.options.baseUrl.replace(/\/$/, "")}/${procedure}`);
    url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
    const protocols = token === undefined ? ["seqledger.v1"] : ["seqledger.v1", bearerProtocol(token)];
    return new WriteStream(url.href, protocols, webSocket, events);
  }

  /** Makes one call, and retries it with the same message until the answer is final. */
  private async call<I extends DescMessage, O extends DescMessage>(
    method: DescMethodUnary<I, O>, init: MessageInitShape<I>, options: CallOptions,
  ): Promise<MessageShape<O>> {
    const signal = this.signalOf(options.signal);
    const message = create(method.input, init);
    let renewed = false;
    for (let n = 0; ; n++) {
      if (signal.aborted) throw signal.reason;
      const headers = await this.headers();
      try {
        const timeoutMs = options.timeoutMs ?? attemptMs;
        return (await this.noting(signal, this.transport.unary(method, signal, timeoutMs, headers, message))).message;
      } catch (thrown) {
        if (signal.aborted) throw signal.reason;
        const e = errorFromConnect(thrown);
        // The token may have been renewed meanwhile. Retry once only, because a function may return a new token each
        // time.
        const again: boolean = !renewed && e.connectCode === Code.Unauthenticated && (await this.renewed(headers));
        if (!e.worthRetrying && !again) throw e;
        renewed ||= again;
        await sleep(backoff(n, e.retryAfterMs), signal);
      }
    }
  }

  private async headers(): Promise<Headers> {
    const headers = new Headers();
    const token = await this.token();
    if (token !== undefined) headers.set("Authorization", `Bearer ${token}`);
    return headers;
  }

  private async token(): Promise<string | undefined> {
    const token = await this.options.token?.();
    if (token === undefined || token === "") return undefined;
    if (!/^[!-~]+$/.test(token)) throw new TypeError("ClientOptions.token returned a token with an invalid character");
    return token;
  }

  private async renewed(refused: Headers): Promise<boolean> {
    return (await this.headers()).get("Authorization") !== refused.get("Authorization");
  }

  /** @internal */
  add(w: Writer): void {
    if (this.abort.signal.aborted) throw new ClosedError("the Client");
    this.writers.add(w);
  }

  /** @internal */
  remove(w: Writer): void {
    this.writers.delete(w);
  }

  /**
   * Sends at once what waits for the network. In a browser the client calls this itself when the page comes online or
   * becomes visible again.
   */
  wake(): void {
    this.sender.wake();
  }

  /**
   * Ends all Writers at once, and rejects with the first UnsettledError. To wait for writes, close the Writers first.
   */
  async close(): Promise<void> {
    this.stopListening();
    const writers = [...this.writers];
    const closing = writers.map((w) => w.close({ signal: AbortSignal.abort(new ClosedError("the Client")) }));
    this.abort.abort(new ClosedError("the Client"));
    this.sender.close();
    const failed = (await Promise.allSettled(closing)).find((r) => r.status === "rejected");
    if (failed !== undefined) throw failed.reason;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}

/**
 * whenBack calls wake when the network is back or the page becomes visible again, and returns the function that stops
 * this. Browsers delay the timers of a page in the background.
 */
function whenBack(wake: () => void): () => void {
  const { addEventListener, document } = globalThis as { addEventListener?: unknown; document?: Document };
  if (addEventListener === undefined) return () => {}; // Node
  const shown = (): void => {
    if (document!.visibilityState === "visible") wake();
  };
  globalThis.addEventListener("online", wake);
  document?.addEventListener("visibilitychange", shown);
  return () => {
    globalThis.removeEventListener("online", wake);
    document?.removeEventListener("visibilitychange", shown);
  };
}

/**
 * fetchRepeats reports whether the platform's fetch may send a POST twice. Node's does not. Deno, Bun and others have a
 * process with the name of Node; all of them, and Node from version 21 on, say in navigator what they are.
 *
 * @internal
 */
export function fetchRepeats(
  platform: { process?: { release?: { name?: string } }; navigator?: { userAgent?: string } },
): boolean {
  const { process, navigator } = platform;
  return process?.release?.name !== "node" || (navigator !== undefined && !navigator.userAgent?.startsWith("Node.js/"));
}

function isLoopback(host: string): boolean {
  return host === "localhost" || host === "[::1]" || /^127(\.\d+){3}$/.test(host);
}

