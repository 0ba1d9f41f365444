// Errors of this package, and the meaning of answers from the server or an intermediary. The rules are those of the Go
// package client/failure.

import { Code, ConnectError } from "@connectrpc/connect";
import type { Duration } from "@bufbuild/protobuf/wkt";
import { type WriteError, WriteErrorCode, WriteErrorSchema } from "./gen/seqledger/v1/types_pb.js";
import type { Pending } from "./pending.js";

export { Code, WriteErrorCode };

/** LedgerError is an error answer of the server or of an intermediary. */
export class LedgerError extends Error {
  override readonly name = "LedgerError";
  /** Why a write was refused. UNSPECIFIED if the answer carried no WriteError. */
  code: WriteErrorCode = WriteErrorCode.UNSPECIFIED;
  /** The stream's last committed sequence, if the decision depended on it. */
  lastCommittedSequence = 0n;
  /** The stream's session, if the decision depended on it. */
  session = 0n;
  /** The sequence that the key or the request was committed under. */
  committedSequence = 0n;
  /** The index of the operation that failed, from 0. */
  operationIndex = 0;
  /** The entity key whose condition failed. */
  key = "";
  /** The version of that entity; 0 if it is absent. */
  currentVersion = 0n;
  /** The invalid field of an INVALID_ARGUMENT. */
  field = "";
  /** How long the server asks the client to wait, in milliseconds; 0 if it does not ask. */
  retryAfterMs = 0;
  /**
   * True if the answer was in Connect's own form, as the answers of a seqledger server always are. Otherwise this
   * client made the error from an HTTP status or a broken connection, and what the server did is unknown.
   */
  wire = false;
  /** The HTTP status of an answer that was not in Connect's form, or 0. */
  status = 0;
  /** True if the answer carries a seqledger server's own challenge for a token. */
  challenged = false;
  /** True if no connection could be made, so that nothing was sent. */
  neverSent = false;

  /** connectCode is the code of the call; in a batch, the code that a single Write would have had. */
  constructor(
    readonly connectCode: Code,
    message: string,
    options?: { cause?: unknown },
  ) {
    super(message, options);
  }

  /** Reports whether the same request may succeed a moment later. */
  get worthRetrying(): boolean {
    switch (this.code) {
      case WriteErrorCode.QUEUE_FULL:
      case WriteErrorCode.NOT_LEADER:
      case WriteErrorCode.DRAINING:
      case WriteErrorCode.OUTCOME_UNKNOWN:
        return true;
      case WriteErrorCode.UNSPECIFIED:
        break;
      default:
        return false;
    }
    if (this.status !== 0 && this.status !== 200) {
      // The answer came from a load balancer or another program, not from the ledger. These statuses are temporary.
      if (this.status === 408 || this.status === 425 || this.status === 429) return true;
      return this.status >= 500 && this.status !== 501 && this.status !== 505;
    }
    if (!this.wire && isTLSRefusal(this.cause)) return false;
    switch (this.connectCode) {
      case Code.Canceled:
      case Code.Unknown:
      case Code.DeadlineExceeded:
      case Code.ResourceExhausted:
      case Code.Aborted:
      case Code.Internal:
      case Code.Unavailable:
        return true;
    }
    return false;
  }

  /**
   * Reports whether the ledger itself has refused the call and would refuse it again. A refusal that may come from an
   * intermediary is not final: a load balancer without a live server may answer 404 or 401 for half a second.
   */
  get isFinal(): boolean {
    return this.code !== WriteErrorCode.UNSPECIFIED && !this.worthRetrying;
  }

  /**
   * Reports whether a write that got this answer may be committed, now or later. Every answer leaves that open unless
   * it is known to precede the proposal.
   */
  get leavesOutcomeOpen(): boolean {
    if (!this.wire || this.code === WriteErrorCode.OUTCOME_UNKNOWN) return true;
    if (this.code !== WriteErrorCode.UNSPECIFIED) return WriteErrorCode[this.code] === undefined;
    switch (this.connectCode) {
      case Code.Unauthenticated:
      case Code.PermissionDenied:
      case Code.Unimplemented:
      case Code.InvalidArgument:
        return false;
    }
    return true;
  }

  /** Reports whether the server refused a whole message, most likely because it is too large. */
  get refusesFrame(): boolean {
    return this.wire && this.code === WriteErrorCode.INVALID_ARGUMENT;
  }
}

/**
 * NotExecutedError means that a write was not executed and never will be: no copy of it is in flight. Submitting the
 * same operations again is a new write and cannot execute the old one twice.
 */
export class NotExecutedError extends Error {
  override readonly name = "NotExecutedError";

  /**
   * sequence is the number of the write, which is free again; 0 if it never got one. cause is the refusal (a
   * LedgerError), a StoppedError, or the reason why the Writer or the wait ended.
   */
  constructor(
    readonly sequence: bigint,
    override readonly cause: unknown,
  ) {
    super(`${sequence === 0n ? "write" : `write ${sequence}`} not executed: ${messageOf(cause)}`);
  }
}

/**
 * OutcomeUnknownError means that a write was sent and its outcome is unknown to this client. As long as its Writer
 * runs, the Writer still settles the write: pending.settled has the outcome.
 */
export class OutcomeUnknownError extends Error {
  override readonly name = "OutcomeUnknownError";
  readonly sequence: bigint;
  readonly idempotencyKey: string;

  /** cause is the reason why the wait or the Writer ended. A refusal in it is about another copy or write. */
  constructor(
    readonly pending: Pending,
    override readonly cause: unknown,
  ) {
    super(
      `outcome of write ${pending.sequence} (key ${pending.key}) unknown, repeat the same sequence and key ` +
        `or ask getClientState: ${messageOf(cause)}`,
    );
    this.sequence = pending.sequence;
    this.idempotencyKey = pending.key;
  }
}

/** StoppedError names the refused write that stopped a Writer. */
export class StoppedError extends Error {
  override readonly name = "StoppedError";

  constructor(
    readonly sequence: bigint,
    readonly refusal: LedgerError,
  ) {
    super(`write ${sequence} before it was refused (${refusal.message}); call resume`);
  }
}

/**
 * UnsettledError says why a Writer ended and which writes it could not settle. The application must find out their
 * outcomes, because the Writer no longer sends them.
 */
export class UnsettledError extends Error {
  override readonly name = "UnsettledError";

  /** writes may or may not have been committed. They are in the order of their sequences. */
  constructor(
    readonly writes: Pending[],
    override readonly cause: unknown,
  ) {
    super(
      writes.length === 0
        ? `writer ended, every write settled: ${messageOf(cause)}`
        : `writer ended with ${writes.length} unsettled writes from ${writes[0]!.sequence} on: ${messageOf(cause)}`,
    );
  }
}

/** ClosedError means that the Client, the Writer or the journal was closed. */
export class ClosedError extends Error {
  override readonly name = "ClosedError";
  constructor(what: string, options?: { cause?: unknown }) {
    super(`${what} is closed`, options);
  }
}

/** OtherLedgerError means that the server's ledger is not the one of the journal or of the watch. */
export class OtherLedgerError extends Error {
  override readonly name = "OtherLedgerError";
}

/** ProtocolError means that the server's answers contradict each other or the request. */
export class ProtocolError extends Error {
  override readonly name = "ProtocolError";
}

/**
 * codeOf returns the code of the refusal in an error of this package, or UNSPECIFIED if there is none. The code of an
 * OutcomeUnknownError is SESSION_FENCED, SESSION_EXPIRED or UNSPECIFIED: any other refusal is not about this write.
 */
export function codeOf(error: unknown): WriteErrorCode {
  if (error instanceof LedgerError) return error.code;
  if (error instanceof NotExecutedError || error instanceof UnsettledError) return codeOf(error.cause);
  if (error instanceof OutcomeUnknownError) {
    const code = codeOf(error.cause);
    return code === WriteErrorCode.SESSION_FENCED || code === WriteErrorCode.SESSION_EXPIRED
      ? code
      : WriteErrorCode.UNSPECIFIED;
  }
  return WriteErrorCode.UNSPECIFIED;
}

/** isConditionFailed reports whether a condition of the write did not hold. Read the entity again and decide. */
export function isConditionFailed(error: unknown): boolean {
  switch (codeOf(error)) {
    case WriteErrorCode.KEY_EXISTS:
    case WriteErrorCode.KEY_NOT_FOUND:
    case WriteErrorCode.VERSION_MISMATCH:
    case WriteErrorCode.VALUE_MISMATCH:
      return true;
  }
  return false;
}

/** isFenced reports whether another process has taken the stream over. The caller should stop. */
export function isFenced(error: unknown): boolean {
  return codeOf(error) === WriteErrorCode.SESSION_FENCED;
}

/** isExpired reports whether the stream was evicted. */
export function isExpired(error: unknown): boolean {
  return codeOf(error) === WriteErrorCode.SESSION_EXPIRED;
}

/** isNotFound reports whether the entity, transaction or block does not exist or may not be read by the caller. */
export function isNotFound(error: unknown): boolean {
  return error instanceof LedgerError && error.code === 0 && error.connectCode === Code.NotFound;
}

/** messageOf returns the message of a thrown value of any type. */
export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

/** The header value by which a seqledger server asks for a token. */
const challenge = `Bearer realm="seqledger"`;

/** errorFromConnect converts the error of a call. */
export function errorFromConnect(thrown: unknown): LedgerError {
  if (thrown instanceof LedgerError) return thrown;
  const rpc = ConnectError.from(thrown);
  const e = new LedgerError(rpc.code, rpc.rawMessage, { cause: rpc.cause ?? thrown });
  const status = /^HTTP (\d{3})$/.exec(rpc.rawMessage);
  if (status !== null) {
    e.status = Number(status[1]);
  } else {
    e.wire = rpc.rawMessage !== "" && (rpc.metadata.get("content-type") ?? "").startsWith("application/json");
  }
  e.neverSent = hasCode(e.cause, /^(ECONNREFUSED|ENOTFOUND|EAI_AGAIN)$/);
  e.challenged = e.wire && (rpc.metadata.get("www-authenticate") ?? "").startsWith(challenge);
  const refusal = rpc.findDetails(WriteErrorSchema)[0];
  if (refusal !== undefined) {
    copyDetail(e, refusal);
    e.wire = true;
  }
  return e;
}

/** errorFromResult converts the error of one write in a batch or a stream. */
export function errorFromResult(refusal: WriteError): LedgerError {
  const e = new LedgerError(connectCodeOf(refusal.code), "");
  copyDetail(e, refusal);
  e.wire = true;
  return e;
}

function copyDetail(e: LedgerError, refusal: WriteError): void {
  e.code = refusal.code;
  e.lastCommittedSequence = refusal.lastCommittedSequence;
  e.session = refusal.session;
  e.committedSequence = refusal.committedSequence;
  e.operationIndex = refusal.operationIndex;
  e.key = refusal.key;
  e.currentVersion = refusal.currentVersion;
  e.field = refusal.field;
  e.retryAfterMs = milliseconds(refusal.retryAfter);
  const field = refusal.field === "" ? "" : ` (${refusal.field})`;
  e.message = `${WriteErrorCode[refusal.code] ?? `code ${refusal.code}`}${field}: ${refusal.message || e.message}`;
}

/** connectCodeOf returns the code of a call with this refusal, as the API defines it. */
function connectCodeOf(code: WriteErrorCode): Code {
  switch (code) {
    case WriteErrorCode.UNSPECIFIED:
      return Code.Unknown;
    case WriteErrorCode.ALREADY_COMMITTED:
      return Code.AlreadyExists;
    case WriteErrorCode.INVALID_ARGUMENT:
      return Code.InvalidArgument;
    case WriteErrorCode.PERMISSION_DENIED:
      return Code.PermissionDenied;
    case WriteErrorCode.QUEUE_FULL:
    case WriteErrorCode.TOO_MANY_STREAMS:
      return Code.ResourceExhausted;
    case WriteErrorCode.NOT_LEADER:
    case WriteErrorCode.DRAINING:
    case WriteErrorCode.OUTCOME_UNKNOWN:
      return Code.Unavailable;
  }
  return Code.FailedPrecondition;
}

/** milliseconds returns a duration in milliseconds; 0 if there is none. */
export function milliseconds(duration: Duration | undefined): number {
  return duration === undefined ? 0 : Number(duration.seconds) * 1000 + duration.nanos / 1e6;
}

/** isTLSRefusal reports whether one side does not trust the other. A retry would fail the same way. */
function isTLSRefusal(cause: unknown): boolean {
  return hasCode(cause, /CERT|SELF_SIGNED|UNABLE_TO_(GET|VERIFY)|^ERR_SSL_/);
}

/** hasCode searches an error and its causes for the code of a system error. */
function hasCode(error: unknown, pattern: RegExp): boolean {
  for (let depth = 0; depth < 8 && error instanceof Error; depth++) {
    const code = (error as { code?: unknown }).code;
    if (typeof code === "string" && pattern.test(code)) return true;
    error = error.cause;
  }
  return false;
}
