// The client of seqledger for browsers, Node, Deno and Bun. README.md shows how to use it.

export { type CallOptions, Client, type ClientOptions, createClient } from "./client.js";
export {
  ClosedError, Code, codeOf, isConditionFailed, isExpired, isFenced, isNotFound, LedgerError, NotExecutedError,
  OtherLedgerError, OutcomeUnknownError, ProtocolError, StoppedError, UnsettledError, WriteErrorCode,
} from "./errors.js";
export { ClientStatus } from "./gen/seqledger/v1/types_pb.js";
export {
  type Entry, type Head, Journal, JournalError, type JournalOptions, type JournalStorage, memoryJournal,
  type StreamName,
} from "./journal.js";
export {
  append, type Condition, deleteEntity, type Operation, relate, setEntity, type SetOptions, unrelate, type Value,
} from "./operations.js";
export { type IndexedDbOptions, indexedDbJournal } from "./indexeddb.js";
export { blockHash, InvalidProofError, type ProofStep, proofSteps, verifyTransaction } from "./proof.js";
export type { Cosigner } from "./policy.js";
export { type ReceiptOptions, type VerifiedReceipt, verifyReceipt } from "./receipt.js";
export type { Pending } from "./pending.js";
export {
  type Block, type BlockHeader, type ClientState, type Entity, type Instant, type MerkleProof, type Receipt,
  receiptGone,
  type Relationship, type Scope, type Status, type Transaction,
} from "./types.js";
export type { WebSocketConstructor } from "./stream.js";
export type { SubmitOptions, Writer, WriterOptions } from "./writer.js";
