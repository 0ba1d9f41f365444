// A submitted write, and the meaning of an answer to it. The rules are those of the Go client; its package
// documentation (client/writer/doc.go) explains why they are right.

import { create } from "@bufbuild/protobuf";
import {
  errorFromResult, LedgerError, NotExecutedError, OutcomeUnknownError, ProtocolError, WriteErrorCode,
} from "./errors.js";
import type { WriteResult } from "./gen/seqledger/v1/ledger_pb.js";
import { type Receipt as ReceiptMessage, ReceiptSchema } from "./gen/seqledger/v1/types_pb.js";
import { decodeOperations, type Operation } from "./operations.js";
import { type Receipt, receiptOf } from "./types.js";
import type { Writer } from "./writer.js";

/**
 * Verdict is the latest answer to a write in the current round of sending. It becomes final only when the Writer
 * settles the write. "retry" decides nothing; "refused" leaves the sequence free; after "fatal" the Writer cannot
 * continue.
 */
export type Verdict = "none" | "committed" | "gap" | "retry" | "refused" | "fatal";

/** Pending is a submitted write. Its Writer settles it, whether or not a caller waits. */
export class Pending {
  /** The write's number in its stream; 0 until the Writer has space for the write. */
  sequence = 0n;
  /** Resolves once the write has a number. If it never gets one, rejects as settled does. */
  readonly accepted: Promise<void>;
  /**
   * Resolves with the receipt once the write is committed. It rejects with a NotExecutedError if the write was not
   * executed and never will be; with an OutcomeUnknownError if the Writer ended first; and with a JournalError
   * ("tag-in-use") if the journal knows the tag: then this is not a new write.
   */
  readonly settled: Promise<Receipt>;

  /** @internal */ verdict: Verdict = "none";
  /** @internal The session of the last copy that was sent. */ session = 0n;
  /** @internal Copies sent under the Writer's current session. */ sends = 0;
  /** @internal A copy other than the answered one may be in flight, so no refusal is final. */ doubtful = false;
  /** @internal The value of doubtful before the last copy was sent. */ private doubtfulBefore = false;
  /** @internal The stream's last sequence shows the commit, even without the receipt. */ committed = false;
  /** @internal */ done = false;
  /** @internal The submitter waits and does nothing that depends on the commit. */ awaited = false;
  /** @internal It is stored in the journal, if there is one. */ durable = false;
  /** @internal Its id in the journal. */ entry = 0n;
  /** @internal */ refusal: LedgerError | undefined;
  /** @internal Another client has used this number, or the ledger is another one. */ foreign: Error | undefined;
  /** @internal */ receipt: ReceiptMessage | undefined;
  /** @internal */ failure: unknown;
  /** @internal */ acknowledged = false;
  /** @internal */ resolveAccepted!: () => void;
  private rejectAccepted!: (reason: unknown) => void;
  private resolveSettled!: (receipt: Receipt) => void;
  private rejectSettled!: (reason: unknown) => void;

  /** @internal encoded holds the operations: every copy has these bytes. */
  constructor(
    private readonly writer: Writer,
    /** @internal */ readonly encoded: Uint8Array,
    /** @internal The number of operations. */ readonly count: number,
    /** @internal An upper bound of the size of the whole write in a message, in bytes. */ readonly size: number,
    /** The write's idempotency key. */ readonly key: string,
    /** The application's own name for the write; may be empty. */ readonly tag: string,
  ) {
    this.accepted = new Promise((resolve, reject) => {
      this.resolveAccepted = resolve;
      this.rejectAccepted = reject;
    });
    this.settled = new Promise((resolve, reject) => {
      this.resolveSettled = resolve;
      this.rejectSettled = reject;
    });
    // A program that looks only at some outcomes must not end because of the others.
    this.accepted.catch(() => {});
    this.settled.catch(() => {});
  }

  /** Returns what was submitted, decoded from the bytes that are sent. */
  get operations(): Operation[] {
    return decodeOperations(this.encoded);
  }

  /**
   * Returns settled, or rejects with an OutcomeUnknownError when the signal ends the wait. In that case the Writer
   * still settles the write.
   */
  async wait(signal?: AbortSignal): Promise<Receipt> {
    if (signal === undefined || this.done) return this.settled;
    let stop = (): void => {};
    const ended = new Promise<never>((_, reject) => {
      stop = () => reject(new OutcomeUnknownError(this, signal.reason));
      signal.addEventListener("abort", stop, { once: true });
      if (signal.aborted) stop();
    });
    return Promise.race([this.settled, ended]).finally(() => signal.removeEventListener("abort", stop));
  }

  /**
   * Removes this write from the journal. Call it when the application has durably recorded the outcome. It does not
   * wait for the storage: after a crash the outcome may be returned once more. It does nothing for a write that has no
   * tag or was not executed.
   */
  async acknowledge(): Promise<void> {
    if (this.tag === "" || this.acknowledged || this.failure instanceof NotExecutedError) return;
    if (!this.done || this.failure !== undefined) {
      throw new OutcomeUnknownError(this, new Error("a write is acknowledged once it is settled"));
    }
    this.writer.acknowledge(this);
    this.acknowledged = true;
  }

  /** @internal Settles the write: undefined means committed. */
  finish(failure?: unknown): void {
    this.done = true;
    this.failure = failure;
    if (failure === undefined) {
      this.resolveAccepted();
      this.resolveSettled(receiptOf(this.receipt!));
    } else {
      this.rejectAccepted(failure);
      this.rejectSettled(failure);
    }
  }

  /** @internal Records that a copy is being sent under a session. */
  markSent(session: bigint): void {
    this.session = session;
    this.verdict = "none";
    this.refusal = this.receipt = undefined;
    this.doubtfulBefore = this.doubtful;
    this.sends++;
    if (this.sends > 1) this.doubtful = true;
  }

  /** @internal Records that the copy never left this machine. */
  markUnsent(): void {
    this.sends--;
    this.doubtful = this.doubtfulBefore;
  }

  /** @internal Records an answer of the server. The Writer decides what it means. */
  answer(result: WriteResult, writer: Writer): void {
    if (result.result.case === "receipt") {
      const receipt = result.result.value;
      if (receipt.txId === "") { // a ledger's has one
        throw new ProtocolError(`a receipt without tx_id in answer to sequence ${this.sequence}`);
      }
      if (receipt.sequence !== this.sequence) {
        throw new ProtocolError(`receipt of sequence ${receipt.sequence} in answer to sequence ${this.sequence}`);
      }
      this.verdict = "committed";
      this.receipt = receipt;
      this.checkReceipt(writer);
    } else if (result.result.case === "error") {
      this.refusal = errorFromResult(result.result.value);
      this.verdict = verdictOf(this.refusal.code);
      if (this.refusal.leavesOutcomeOpen) this.doubtful = true;
      if (this.verdict === "committed") this.checkAlreadyCommitted();
    } else {
      throw new ProtocolError(`a result with neither receipt nor error in answer to sequence ${this.sequence}`);
    }
  }

  /** Whether an earlier copy may have committed before the one that was just answered. */
  private get repeated(): boolean {
    return this.sends > 1 || this.doubtful || this.committed;
  }

  /** Ends the Writer if the receipt cannot belong to this write. */
  private checkReceipt(writer: Writer): void {
    const receipt = this.receipt!;
    const ledger = ledgerOf(receipt.txId);
    if (ledger !== undefined && writer.ledger !== 0n && ledger !== writer.ledger) {
      this.foreignReceipt(`its receipt is of ledger ${hex16(ledger)}, those before were of ${hex16(writer.ledger)}`);
    } else if (receipt.replayed && !this.repeated) {
      this.foreignReceipt("its only copy was answered as a repeat");
    } else if (ledger !== undefined) {
      writer.ledger = ledger;
    }
    if (this.verdict === "fatal") {
      // The receipt may still belong to this write: an intermediary may have resent the request.
      this.doubtful = true;
      this.receipt = undefined;
    }
  }

  /**
   * Accepts ALREADY_COMMITTED only for a retry. For a first and only copy it means that another client numbers this
   * stream, or that the address leads to another ledger.
   */
  private checkAlreadyCommitted(): void {
    if (this.repeated) this.receipt = this.bareReceipt();
    else this.foreignReceipt("its number is taken, but its only copy was never executed");
  }

  private foreignReceipt(problem: string): void {
    this.verdict = "fatal";
    this.refusal = undefined;
    this.foreign = new ProtocolError(`write ${this.sequence}: ${problem}`);
  }

  /** @internal Returns a stand-in for a receipt that the ledger no longer keeps. */
  bareReceipt(): ReceiptMessage {
    return create(ReceiptSchema, { sequence: this.sequence, replayed: true });
  }

  /** @internal Reports whether the ledger has sent a receipt for the write. */
  get proven(): boolean {
    return this.verdict === "committed" && this.receipt!.txId !== "";
  }

  /** @internal Returns the write's own refusal if there is one, otherwise cause. */
  reason(cause: unknown): unknown {
    if (this.foreign !== undefined) return this.foreign;
    if (this.refusal !== undefined && (this.verdict === "refused" || this.verdict === "fatal")) return this.refusal;
    return cause;
  }
}

/** verdictOf maps a code to the Writer's reaction. */
function verdictOf(code: WriteErrorCode): Verdict {
  switch (code) {
    case WriteErrorCode.ALREADY_COMMITTED:
      return "committed"; // valid for a retry; checkAlreadyCommitted checks that it is one
    case WriteErrorCode.SEQUENCE_GAP:
      return "gap";
    case WriteErrorCode.QUEUE_FULL:
    case WriteErrorCode.NOT_LEADER:
    case WriteErrorCode.DRAINING:
    case WriteErrorCode.OUTCOME_UNKNOWN:
      return "retry";
    case WriteErrorCode.KEY_EXISTS:
    case WriteErrorCode.KEY_NOT_FOUND:
    case WriteErrorCode.VERSION_MISMATCH:
    case WriteErrorCode.VALUE_MISMATCH:
    case WriteErrorCode.INVALID_ARGUMENT:
    case WriteErrorCode.PERMISSION_DENIED:
    case WriteErrorCode.TOO_MANY_STREAMS:
      return "refused";
  }
  // Fenced, expired, reused, exhausted, session required, and codes of a newer server: a wrong guess about these could
  // execute a write twice.
  return "fatal";
}

/**
 * ledgerOf returns the ledger id in a tx_id, which is a UUIDv8: 48 bits, the version, 12 bits, the variant, 4 bits, and
 * then 58 bits of index. It returns undefined if the text is not a tx_id.
 */
function ledgerOf(txId: string): bigint | undefined {
  if (!/^[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}$/i.test(txId)) return undefined;
  const high = BigInt(`0x${txId.slice(0, 8)}${txId.slice(9, 13)}`);
  const middle = BigInt(`0x${txId.slice(15, 18)}`);
  const low = BigInt((parseInt(txId.slice(19, 21), 16) >> 2) & 0xf);
  return (high << 16n) | (middle << 4n) | low;
}

/** hex16 returns a ledger id in the server's format. */
export const hex16 = (id: bigint): string => id.toString(16).padStart(16, "0");

let pool = new Uint8Array(0);
let used = 0;

/** newKey returns a fresh UUIDv7 as text. It must be unique among a stream's receipts, not secret. */
export function newKey(): string {
  if (used === pool.length) {
    pool = crypto.getRandomValues(new Uint8Array(1600));
    used = 0;
  }
  const time = Date.now().toString(16).padStart(12, "0");
  let text = `${time.slice(0, 8)}-${time.slice(8)}-7`;
  const random = pool.subarray(used, (used += 10));
  const digits = Array.from(random, (b) => b.toString(16).padStart(2, "0")).join("");
  const variant = (8 + (random[9]! & 3)).toString(16);
  text += `${digits.slice(0, 3)}-${variant}${digits.slice(3, 6)}-${digits.slice(6, 18)}`;
  return text;
}

/** newAttempt returns 16 random bytes that identify one attempt to open a session. */
export const newAttempt = (): Uint8Array => crypto.getRandomValues(new Uint8Array(16));
