// The ledger's answers, in the platform's types: bigint for 64-bit numbers, Uint8Array for bytes, and Date for times,
// together with the nanoseconds that a Date cannot hold.

import type { Timestamp } from "@bufbuild/protobuf/wkt";
import type * as pb from "./gen/seqledger/v1/types_pb.js";
import type { Operation } from "./operations.js";

/** Scope is where a write happens: an organization, or one vault of it. */
export interface Scope {
  organization: string;
  /** Empty or absent: the organization itself. */
  vault?: string;
}

/** Instant is a time in milliseconds, together with the nanoseconds of its second. */
export interface Instant {
  date: Date;
  /** 0 to 999,999,999. */
  nanoseconds: number;
}

/** Receipt is the full result of a committed write. */
export interface Receipt {
  /** Empty if the ledger no longer keeps the receipt; see receiptGone. */
  txId: string;
  sequence: bigint;
  session: bigint;
  /** The ledger index of the write. */
  index: bigint;
  blockHeight: bigint;
  blockPosition: number;
  /** Ledger time of the commit. */
  committedAt: Instant | undefined;
  actor: string;
  requestHash: string;
  /** True if the write was already committed before this request. */
  replayed: boolean;
  /** The ledger index of each operation's change; 0 if it found nothing to change. */
  versions: bigint[];
}

/**
 * receiptGone reports whether a write is committed but the ledger no longer keeps its receipt. Such a receipt has only
 * sequence and replayed. It is not an error, because a caller that treats every error as "not done" would pay twice.
 */
export function receiptGone(receipt: Receipt): boolean {
  return receipt.txId === "";
}

/** BlockHeader identifies one block. The headers of a scope form a hash chain. */
export interface BlockHeader {
  scope: Scope;
  height: bigint;
  previousHash: Uint8Array;
  txRoot: Uint8Array;
  txCount: number;
  committedAt: Instant | undefined;
}

/** MerkleProof is an RFC 6962 inclusion path from one transaction to the txRoot of its block. */
export interface MerkleProof {
  leafIndex: bigint;
  treeSize: bigint;
  path: Uint8Array[];
}

/** Transaction is a committed write as the ledger stores it. */
export interface Transaction {
  txId: string;
  scope: Scope;
  clientId: string;
  streamCreatedIndex: bigint;
  session: bigint;
  sequence: bigint;
  idempotencyKey: string;
  requestHash: string;
  actor: string;
  committedAt: Instant | undefined;
  index: bigint;
  operations: Operation[];
  blockHeight: bigint;
  blockPosition: number;
  /** Which canonical encoding it has: 1, or 2 for a keyed write. */
  encoding: number;
  /** Which operations changed something: empty for all of them, else a bit for each, lowest first. */
  changed: Uint8Array;
  /** The identity of a keyed write. */
  keyed: { namespace: string; principal: string; keyHash: Uint8Array } | undefined;
}

/** Block holds what one log entry committed in one scope. */
export interface Block {
  header: BlockHeader;
  /** SHA-256 of the header's canonical encoding. */
  hash: Uint8Array;
  /** Empty if only the header was requested. */
  transactions: Transaction[];
}

/** Entity is a key with a value in one scope. */
export interface Entity {
  key: string;
  value: Uint8Array;
  /** The ledger index of the last set. It never repeats, even after a delete. */
  version: bigint;
  expiresAt: Instant | undefined;
  txId: string;
}

/** Relationship is a (resource, relation, subject) triple in one scope. */
export interface Relationship {
  resource: string;
  relation: string;
  subject: string;
}

/** ClientState is the state of a stream. */
export interface ClientState {
  status: pb.ClientStatus;
  lastCommittedSequence: bigint;
  session: bigint;
  createdIndex: bigint;
  lastIdempotencyKey: string;
  lastRequestHash: string;
  lastSeen: Instant | undefined;
  expiresAt: Instant | undefined;
  receiptWindow: number;
}

/** Status describes the server. */
export interface Status {
  version: string;
  /** 16 hex digits. */
  ledgerId: string;
  index: bigint;
  ledgerTime: Instant | undefined;
}

export const instantOf = (t: Timestamp | undefined): Instant | undefined =>
  t === undefined
    ? undefined
    : { date: new Date(Number(t.seconds) * 1000 + Math.floor(t.nanos / 1e6)), nanoseconds: t.nanos };

export const scopeOf = (s: pb.Scope | undefined): Scope => ({
  organization: s?.organization ?? "", vault: s?.vault ?? "",
});

export const receiptOf = (r: pb.Receipt): Receipt => ({
  txId: r.txId, sequence: r.sequence, session: r.session, index: r.index, blockHeight: r.blockHeight,
  blockPosition: r.blockPosition, committedAt: instantOf(r.committedAt), actor: r.actor, requestHash: r.requestHash,
  replayed: r.replayed, versions: r.results.map((result) => result.version),
});

export const headerOf = (h: pb.BlockHeader | undefined): BlockHeader => ({
  scope: scopeOf(h?.scope), height: h?.height ?? 0n, previousHash: h?.previousHash ?? new Uint8Array(0),
  txRoot: h?.txRoot ?? new Uint8Array(0), txCount: h?.txCount ?? 0, committedAt: instantOf(h?.committedAt),
});

export const proofOf = (p: pb.MerkleProof | undefined): MerkleProof | undefined =>
  p === undefined ? undefined : { leafIndex: p.leafIndex, treeSize: p.treeSize, path: p.path };

export const transactionOf = (t: pb.Transaction): Transaction => ({
  txId: t.txId, scope: scopeOf(t.scope), clientId: t.clientId, streamCreatedIndex: t.streamCreatedIndex,
  session: t.session, sequence: t.sequence, idempotencyKey: t.idempotencyKey, requestHash: t.requestHash,
  actor: t.actor, committedAt: instantOf(t.committedAt), index: t.index, operations: t.operations,
  blockHeight: t.blockHeight, blockPosition: t.blockPosition, encoding: t.encoding, changed: t.changed,
  keyed: t.keyed && { namespace: t.keyed.namespace, principal: t.keyed.principal, keyHash: t.keyed.keyHash },
});

export const entityOf = (e: pb.Entity): Entity => ({
  key: e.key, value: e.value, version: e.version, expiresAt: instantOf(e.expiresAt), txId: e.txId,
});

export const clientStateOf = (s: pb.ClientState): ClientState => ({
  status: s.status, lastCommittedSequence: s.lastCommittedSequence, session: s.session, createdIndex: s.createdIndex,
  lastIdempotencyKey: s.lastIdempotencyKey, lastRequestHash: s.lastRequestHash, lastSeen: instantOf(s.lastSeen),
  expiresAt: instantOf(s.expiresAt), receiptWindow: s.receiptWindow,
});
