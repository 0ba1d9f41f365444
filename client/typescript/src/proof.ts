// Verifies a ledger's answers without trusting it: that a transaction is in a block, by a Merkle proof, and what the
// hash of that block is. The encodings are those of ledger/FORMAT.md.

import { BinaryWriter } from "@bufbuild/protobuf/wire";
import type { Timestamp } from "@bufbuild/protobuf/wkt";
import type { Condition } from "./gen/seqledger/v1/types_pb.js";
import type { Operation } from "./operations.js";
import type { BlockHeader, Instant, MerkleProof, Transaction } from "./types.js";

/** InvalidProofError means that an answer and its proof contradict each other. */
export class InvalidProofError extends Error {
  override readonly name = "InvalidProofError";
}

const hashBytes = 32;

/**
 * verifyTransaction checks that a transaction, with all its fields, is in the block of the header.
 * Client.getTransaction with proof returns all three. It rejects with an InvalidProofError that names the field that
 * does not match.
 *
 * A header from the same answer only shows that the answer is consistent. To show that the transaction is in the
 * history that others see, compare the header's blockHash with a hash from another source or an earlier time.
 */
export async function verifyTransaction(
  transaction: Transaction, header: BlockHeader, proof: MerkleProof,
): Promise<void> {
  const fields: [string, boolean][] = [
    ["scope", header.scope.organization === transaction.scope.organization &&
      (header.scope.vault ?? "") === (transaction.scope.vault ?? "")],
    ["height", header.height === transaction.blockHeight],
    ["committedAt", sameInstant(header.committedAt, transaction.committedAt)],
    ["txCount", BigInt(header.txCount) === proof.treeSize],
    ["proof's leafIndex", proof.leafIndex === BigInt(transaction.blockPosition)],
  ];
  for (const [name, same] of fields) {
    if (!same) throw new InvalidProofError(`the header's ${name} is not the transaction's`);
  }
  if (header.txRoot.length !== hashBytes || header.previousHash.length !== hashBytes) {
    throw new InvalidProofError(`previousHash and txRoot of the header must have ${hashBytes} bytes`);
  }
  if (proof.path.some((hash) => hash.length !== hashBytes)) {
    throw new InvalidProofError(`each hash of the proof's path must have ${hashBytes} bytes`);
  }
  const { leaf, steps } = await proofSteps(transaction, proof);
  if (!equal(steps.at(-1)?.node ?? leaf, header.txRoot)) {
    throw new InvalidProofError("transaction and path do not lead to the header's txRoot");
  }
}

/** blockHash computes the hash of a block from its header; it is previousHash of the next header. */
export function blockHash(header: BlockHeader): Promise<Uint8Array> {
  // The leaves and nodes of a Merkle tree are hashed with the prefixes 0 and 1. A different prefix keeps a header from
  // passing for one of them.
  const w = new Encoder().byte(2).byte(1).text(header.scope.organization).text(header.scope.vault ?? "");
  w.uvarint(header.height).raw(header.previousHash).raw(header.txRoot).uvarint(BigInt(header.txCount));
  return sha256(w.big64(nanosOf("committedAt", header.committedAt)).finish());
}

/** A step of a Merkle path: the hash of two nodes, one of which is the sibling from the proof. */
export interface ProofStep {
  sibling: Uint8Array;
  /** Whether the sibling is the left node. */
  siblingIsLeft: boolean;
  /** The hash of both nodes. */
  node: Uint8Array;
}

/**
 * proofSteps follows the inclusion path of a transaction, as in RFC 9162, section 2.1.3.2. It returns the hash of the
 * transaction and each step; the last node is the root, which verifyTransaction compares.
 */
export async function proofSteps(
  transaction: Transaction, proof: MerkleProof,
): Promise<{ leaf: Uint8Array; steps: ProofStep[] }> {
  const leaf = await leafHash(await transactionLeaf(transaction));
  return { leaf, steps: await followPath(leaf, proof) };
}

/** leafHash is the hash of a leaf, as in RFC 6962. */
export const leafHash = (data: Uint8Array): Promise<Uint8Array> => sha256(Uint8Array.of(0), data);

/** followPath follows an inclusion path from the hash of a leaf. */
export async function followPath(
  leaf: Uint8Array, { leafIndex, treeSize, path }: MerkleProof,
): Promise<ProofStep[]> {
  if (leafIndex >= treeSize) throw new InvalidProofError(`leaf ${leafIndex} is beyond the ${treeSize} of the tree`);
  const steps: ProofStep[] = [];
  let index = leafIndex;
  let last = treeSize - 1n;
  let node = leaf;
  for (const sibling of path) {
    if (last === 0n) throw new InvalidProofError("the proof's path is too long");
    const siblingIsLeft = (index & 1n) === 1n || index === last;
    node = await sha256(Uint8Array.of(1), ...(siblingIsLeft ? [sibling, node] : [node, sibling]));
    while (siblingIsLeft && (index & 1n) === 0n && index !== 0n) {
      index >>= 1n;
      last >>= 1n;
    }
    steps.push({ sibling, siblingIsLeft, node });
    index >>= 1n;
    last >>= 1n;
  }
  if (last !== 0n) throw new InvalidProofError("the proof's path is too short");
  return steps;
}

/** transactionLeaf returns what the leaf hash of a transaction covers. Each field has only one form. */
export async function transactionLeaf(t: Transaction): Promise<Uint8Array> {
  const id = uuid("txId", t.txId);
  const view = new DataView(id.buffer);
  const high = view.getBigUint64(0);
  const low = view.getBigUint64(8);
  if (((high >> 12n) & 0xfn) !== 8n || low >> 62n !== 2n || (low & ((1n << 58n) - 1n)) !== t.index) {
    throw new InvalidProofError(`txId is not that of index ${t.index} in any ledger`);
  }
  const ledger = ((high >> 16n) << 16n) | ((high & 0xfffn) << 4n) | ((low >> 58n) & 0xfn);
  const { keyed } = t;
  if (t.encoding !== 1 && t.encoding !== 2 || (t.encoding === 2) !== (keyed !== undefined)) {
    throw new InvalidProofError(`encoding ${t.encoding} is not known here, or does not fit the other fields`);
  }
  const w = new Encoder().byte(t.encoding).big64(ledger).big64(t.index).big64(nanosOf("committedAt", t.committedAt));
  w.text(t.scope.organization).text(t.scope.vault ?? "").text(t.clientId);
  w.uvarint(t.streamCreatedIndex).uvarint(t.session).uvarint(t.sequence);
  if (t.idempotencyKey === "") w.byte(0);
  else w.byte(1).raw(uuid("idempotencyKey", t.idempotencyKey));
  w.raw(hex("requestHash", t.requestHash, 16)).text(t.actor);
  if (keyed !== undefined) {
    if (keyed.keyHash.length !== hashBytes) throw new InvalidProofError(`keyHash must have ${hashBytes} bytes`);
    w.text(keyed.namespace).text(keyed.principal).raw(keyed.keyHash);
  }
  w.uvarint(BigInt(t.operations.length)).raw(await payloadHash(t.operations));
  return w.bytes(t.changed).finish();
}

/** payloadHash is the hash of operations that a transaction's leaf has. */
export function payloadHash(operations: Operation[]): Promise<Uint8Array> {
  const w = new Encoder();
  operations.forEach((o, i) => encodeOperation(w, o, `operations[${i}]`));
  return sha256(w.finish());
}

function encodeOperation(w: Encoder, { operation: o }: Operation, name: string): void {
  switch (o.case) {
    case "setEntity":
      w.byte(1).text(o.value.key).bytes(o.value.value);
      encodeCondition(w, o.value.condition, name);
      w.uvarint(unixNanos(`${name}.expiresAt`, o.value.expiresAt));
      return;
    case "deleteEntity":
      w.byte(2).text(o.value.key);
      encodeCondition(w, o.value.condition, name);
      return;
    case "createRelationship":
      w.byte(3).text(o.value.resource).text(o.value.relation).text(o.value.subject);
      return;
    case "deleteRelationship":
      w.byte(4).text(o.value.resource).text(o.value.relation).text(o.value.subject);
      return;
    case "append":
      w.byte(5).bytes(o.value.payload);
      return;
    case "expireEntity":
      w.byte(6).text(o.value.key);
      return;
  }
  // It may be a kind that is newer than this program, which cannot hash it.
  throw new InvalidProofError(`${name} is of no kind that is known here`);
}

function encodeCondition(w: Encoder, condition: Condition | undefined, name: string): void {
  const c = condition?.condition;
  if (condition === undefined) w.byte(0);
  else if (c?.case === "notExists" && c.value) w.byte(1);
  else if (c?.case === "mustExist" && c.value) w.byte(2);
  else if (c?.case === "version") w.byte(3).uvarint(c.value);
  else if (c?.case === "valueEquals") w.byte(4).bytes(c.value);
  else throw new InvalidProofError(`${name}.condition is of no kind that is known here`);
}

/** Encoder writes the encoding that is hashed. */
class Encoder {
  private readonly w = new BinaryWriter();

  byte(b: number): this {
    return this.raw(Uint8Array.of(b));
  }

  raw(b: Uint8Array): this {
    this.w.raw(b);
    return this;
  }

  uvarint(v: bigint): this {
    this.w.uint64(v);
    return this;
  }

  big64(v: bigint): this {
    const b = new Uint8Array(8);
    new DataView(b.buffer).setBigUint64(0, v);
    return this.raw(b);
  }

  bytes(b: Uint8Array): this {
    this.w.bytes(b);
    return this;
  }

  text(s: string): this {
    this.w.string(s);
    return this;
  }

  finish(): Uint8Array {
    return this.w.finish();
  }
}

/** sha256 hashes bytes, one part after the other. */
export async function sha256(...parts: Uint8Array[]): Promise<Uint8Array> {
  const whole = new Uint8Array(parts.reduce((n, p) => n + p.length, 0));
  let at = 0;
  for (const p of parts) {
    whole.set(p, at);
    at += p.length;
  }
  return new Uint8Array(await crypto.subtle.digest("SHA-256", whole));
}

function nanosOf(name: string, t: Instant | undefined): bigint {
  if (t === undefined) return 0n;
  const seconds = BigInt(Math.floor(t.date.getTime() / 1000));
  return unixNanos(name, { seconds, nanos: t.nanoseconds });
}

/** unixNanos returns Unix nanoseconds. A missing time is 0; no other time is. */
function unixNanos(name: string, t: Pick<Timestamp, "seconds" | "nanos"> | undefined): bigint {
  if (t === undefined) return 0n;
  const nanos = t.seconds * 1_000_000_000n + BigInt(t.nanos);
  if (t.nanos < 0 || t.nanos >= 1e9 || t.seconds < 0n || nanos === 0n || nanos >= 1n << 63n) {
    throw new InvalidProofError(`${name} is no time that a ledger gives`);
  }
  return nanos;
}

function uuid(name: string, text: string): Uint8Array {
  if (!/^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/.test(text)) {
    throw new InvalidProofError(`${name} is ${JSON.stringify(text)} and no UUID in lower case`);
  }
  return hex(name, text.replaceAll("-", ""), 16);
}

function hex(name: string, text: string, size: number): Uint8Array {
  if (text.length !== 2 * size || !/^[0-9a-f]*$/.test(text)) {
    throw new InvalidProofError(`${name} is not ${size} bytes in lower case hex`);
  }
  return Uint8Array.from({ length: size }, (_, i) => parseInt(text.slice(2 * i, 2 * i + 2), 16));
}

function sameInstant(a: Instant | undefined, b: Instant | undefined): boolean {
  return a?.date.getTime() === b?.date.getTime() && a?.nanoseconds === b?.nanoseconds;
}

/** equal compares bytes. */
export function equal(a: Uint8Array, b: Uint8Array): boolean {
  return a.length === b.length && a.every((x, i) => x === b[i]);
}
