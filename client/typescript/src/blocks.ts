// Reading and following blocks in parts. A server refuses to send a block that is too large for one message, so this
// client always asks for parts. A small block is one part.

import { create, equals } from "@bufbuild/protobuf";
import { errorFromConnect, LedgerError, OtherLedgerError, ProtocolError } from "./errors.js";
import {
  BlockContent, type WatchRequest, WatchRequestSchema, type WatchResponse,
} from "./gen/seqledger/v1/ledger_pb.js";
import {
  BlockHeaderSchema, type Block as BlockMessage, type BlockPosition, type Transaction as TransactionMessage,
  TransactionSchema,
} from "./gen/seqledger/v1/types_pb.js";
import { blockHash, equal } from "./proof.js";
import { backoff, sleep } from "./retry.js";
import { type Block, headerOf, type Scope, transactionOf } from "./types.js";

/** BlockJoiner joins the parts of blocks, which arrive in order. It holds at most one block. */
export class BlockJoiner {
  private block: BlockMessage | undefined;

  /** The position at which the next part of the block begins. */
  get next(): BlockPosition | undefined {
    return this.block?.next;
  }

  /** Adds the next part, and returns the block once it is complete. */
  add(part: BlockMessage | undefined): Block | undefined {
    if (part?.header === undefined) throw new ProtocolError("a block without a header");
    this.block ??= { ...part, transactions: [], next: undefined };
    const block = this.block;
    const header = block.header!;
    if (!equals(BlockHeaderSchema, part.header, header) || !equal(part.hash, block.hash)) {
      throw new ProtocolError(`got a part of block ${part.header.height}, want a part of block ${header.height}`);
    }
    let transactions = part.transactions;
    if ((block.next?.operation ?? 0) > 0 && transactions.length > 0) {
      appendOperations(block.transactions.at(-1)!, transactions[0]);
      transactions = transactions.slice(1);
    }
    for (const t of transactions) {
      const due = block.transactions.length;
      const isNext = t.blockHeight === header.height && t.blockPosition === due && t.firstOperation === 0;
      if (!isNext || due >= header.txCount) {
        throw new ProtocolError(
          `block ${header.height} of ${header.txCount} transactions has transaction ${t.blockPosition} of ` +
            `block ${t.blockHeight} at position ${due}`,
        );
      }
      block.transactions.push(t);
    }
    block.next = part.next;
    if (part.next !== undefined) {
      if (part.transactions.length === 0 || !isEnd(block, part.next)) {
        throw new ProtocolError(`a part of block ${header.height} says that the next one begins where it does not end`);
      }
      return undefined;
    }
    if (block.transactions.length !== header.txCount) {
      throw new ProtocolError(`block ${header.height} came with ${block.transactions.length} transactions`);
    }
    this.block = undefined;
    return { header: headerOf(header), hash: block.hash, transactions: block.transactions.map(transactionOf) };
  }
}

function isEnd(block: BlockMessage, at: BlockPosition): boolean {
  const n = block.transactions.length;
  if (at.operation === 0) return at.transaction === n;
  return n > 0 && at.transaction === n - 1 && at.operation === block.transactions[n - 1]!.operations.length;
}

/** appendOperations appends the next part of a transaction. The part's other fields repeat those of the first part. */
export function appendOperations(t: TransactionMessage, part: TransactionMessage | undefined): void {
  const rest = { operations: [], firstOperation: 0 };
  if (
    part === undefined || part.firstOperation !== t.operations.length || part.operations.length === 0 ||
    !equals(TransactionSchema, { ...t, ...rest }, { ...part, ...rest })
  ) {
    throw new ProtocolError(`got another part than the next one of transaction ${t.txId}`);
  }
  t.operations.push(...part.operations);
}

/** WatchCalls are the calls that a Watch makes. */
export interface WatchCalls {
  open(request: WatchRequest, signal: AbortSignal): Promise<AsyncIterable<WatchResponse>>;
  /** Returns the hash of the block at a height, or undefined if there is none. */
  hashOf(height: bigint, signal: AbortSignal): Promise<Uint8Array | undefined>;
}

/** Watch follows the blocks of a scope. */
export class Watch {
  /** The hash of the previous block; undefined before the first. */
  private last: Uint8Array | undefined;

  constructor(
    private readonly scope: Scope,
    private next: bigint,
    private readonly calls: WatchCalls,
  ) {
    if (next < 1n) throw new RangeError(`fromHeight is ${next}, must be at least 1`);
  }

  async *blocks(signal: AbortSignal): AsyncGenerator<Block> {
    for (let failures = 0; ; failures++) {
      const from = this.next;
      try {
        yield* this.once(signal);
      } catch (e) {
        if (signal.aborted) throw signal.reason;
        if (!(e instanceof LedgerError)) throw e;
        if (this.next > from) failures = 0;
        // Once blocks have arrived, an answer that is not in Connect's form is temporary.
        const between = !e.wire && this.last !== undefined;
        if (!between && !e.worthRetrying) throw e;
        await sleep(backoff(failures, e.retryAfterMs), signal);
      }
    }
  }

  /** Yields blocks from one connection. A normal end means that the server is shutting down. */
  private async *once(outer: AbortSignal): AsyncGenerator<Block> {
    const leave = new AbortController();
    const signal = AbortSignal.any([outer, leave.signal]);
    const joiner = new BlockJoiner(); // an incomplete block is read again from its start
    try {
      await this.checkChain(signal);
      const request = create(WatchRequestSchema, {
        scope: this.scope, fromHeight: this.next, content: BlockContent.PARTS,
      });
      for await (const { block: part } of await this.open(request, signal)) {
        const block = joiner.add(part);
        if (block === undefined) continue;
        await this.follow(block);
        yield block;
      }
    } finally {
      leave.abort(); // ends a stream that is still open
    }
  }

  /** Opens a stream whose errors are LedgerErrors. */
  private async *open(request: WatchRequest, signal: AbortSignal): AsyncGenerator<WatchResponse> {
    try {
      yield* await this.calls.open(request, signal);
    } catch (e) {
      throw errorFromConnect(e);
    }
    throw errorFromConnect(new TypeError("the server ended the watch"));
  }

  private async follow(block: Block): Promise<void> {
    const { height, previousHash } = block.header;
    if (height !== this.next) throw new ProtocolError(`got block ${height}, want block ${this.next}`);
    const hash = await blockHash(block.header);
    if (!equal(hash, block.hash)) throw new ProtocolError(`block ${height} has another hash than it says`);
    if (this.last !== undefined && !equal(previousHash, this.last)) {
      throw new OtherLedgerError(`block ${height} does not follow from the block before that was yielded`);
    }
    this.next = height + 1n;
    this.last = hash;
  }

  /** Without this check, a shorter chain would be noticed only after it has grown again. */
  private async checkChain(signal: AbortSignal): Promise<void> {
    if (this.last === undefined) return;
    const hash = await this.calls.hashOf(this.next - 1n, signal);
    if (hash === undefined || !equal(hash, this.last)) {
      throw new OtherLedgerError(`the ledger does not have block ${this.next - 1n} as it was yielded`);
    }
  }
}
