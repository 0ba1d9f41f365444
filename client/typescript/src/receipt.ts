// Verifies receipts without a ledger, by WebCrypto. The formats are those of ledger/FORMAT.md and of tlog-proof of
// c2sp.org. It refuses what ledger/receipt refuses.

import { append, type Operation } from "./operations.js";
import { type Cosigner, decimal, openCheckpoint, parsePolicy, unbase64 } from "./policy.js";
import { equal, followPath, InvalidProofError, leafHash, payloadHash, sha256 } from "./proof.js";
import type { Instant, Scope } from "./types.js";

/** ReceiptOptions says whose signatures are believed, by a policy or a key. */
export interface ReceiptOptions {
  /** The text of a policy, of the format c2sp.org/tlog-policy. */
  policy?: string;
  /** Instead of a policy, the public key of the ledger, and no witness. */
  key?: string;
  /** What the write must have appended, or the operations that it must have done. */
  payload?: Uint8Array | Operation[];
}

/** VerifiedReceipt is what a receipt shows. The write is committed. */
export interface VerifiedReceipt {
  txId: string;
  scope: Scope;
  clientId: string;
  session: bigint;
  sequence: bigint;
  actor: string;
  /** SHA-256 of the operations, one behind the other. */
  payloadHash: Uint8Array;
  /** Whether each operation changed something. */
  changed: boolean[];
  ledgerTime: Instant;
  index: bigint;
  blockHeight: bigint;
  origin: string;
  /** How many blocks the checkpoint has. */
  size: bigint;
  /** The witnesses that have cosigned. */
  cosigners: Cosigner[];
}

const maxBytes = 64 << 10;
const maxPath = 64;
const maxOperations = 1_000;

/**
 * verifyReceipt hashes all of a receipt again and checks its signatures. It rejects with an InvalidProofError unless
 * everything holds, and with another error where WebCrypto lacks Ed25519. Without witnesses it believes the operator of
 * the ledger alone, who could show others another history.
 */
export async function verifyReceipt(file: string | Uint8Array, options: ReceiptOptions): Promise<VerifiedReceipt> {
  if ((options.policy === undefined) === (options.key === undefined)) {
    throw new TypeError("give policy or key, which says whom you believe");
  }
  if (globalThis.crypto?.subtle === undefined) {
    throw new Error("there is no WebCrypto, which browsers have on https and localhost: nothing was verified");
  }
  const text = typeof file === "string" ? file : utf8(file, "the receipt");
  const cut = text.indexOf("\n\n");
  const lines = text.slice(0, Math.max(cut, 0)).split("\n");
  if (lines[0] !== "c2sp.org/tlog-proof@v1" || lines.length < 3 || lines.length > 3 + maxPath ||
    new TextEncoder().encode(text).length > maxBytes) {
    throw new InvalidProofError("it is no receipt: its first line must be c2sp.org/tlog-proof@v1");
  }
  const [extra, index] = [after(lines[1]!, "extra "), after(lines[2]!, "index ")];
  const policy = await parsePolicy(options.policy ?? `log ${options.key}\nquorum none\n`);
  const checkpoint = await openCheckpoint(text.slice(cut + 2), policy);
  const r = new Reader(unbase64(extra));
  if (r.byte() !== 1) throw new InvalidProofError("the receipt is of a version that is not known here");
  const leaf = r.bytes();
  const leafIndex = r.uvarint();
  const path: Uint8Array[] = [];
  for (let n = r.uvarint(); n > 0n; n--) path.push(r.take(32)); // which ends at the end of the file
  if (path.length > maxPath) throw new InvalidProofError("the path in the block is too long");
  const encoded = r.rest();
  const header = readHeader(new Reader(encoded));
  const transaction = readLeaf(new Reader(leaf));
  if (!equal(await root(leaf, leafIndex, header.count, path), header.txRoot)) {
    throw new InvalidProofError("the transaction is not in the block");
  }
  if (header.scope.organization !== transaction.scope.organization || header.scope.vault !== transaction.scope.vault ||
    header.committedAt !== transaction.committedAt) {
    throw new InvalidProofError("the transaction has another scope or time than the block");
  }
  if (!checkpoint.origin.endsWith(`/${transaction.ledger}`)) {
    throw new InvalidProofError(`the transaction is of the ledger ${transaction.ledger}`);
  }
  const block = await sha256(Uint8Array.of(2), encoded);
  const top = await root(block, decimal(index), checkpoint.size, lines.slice(3).map(unbase64));
  if (!equal(top, checkpoint.root)) throw new InvalidProofError("the block is not in the history of the checkpoint");
  if (options.payload !== undefined) await comparePayload(options.payload, transaction.payloadHash);
  const { txId, scope, clientId, session, sequence, actor, payloadHash, changed, committedAt: at } = transaction;
  const ledgerTime = { date: new Date(Number(at / 1_000_000n)), nanoseconds: Number(at % 1_000_000_000n) };
  return {
    txId, scope, clientId, session, sequence, actor, payloadHash, changed, ledgerTime, index: transaction.index,
    blockHeight: header.height, origin: checkpoint.origin, size: checkpoint.size, cosigners: checkpoint.cosigners,
  };
}

async function comparePayload(payload: Uint8Array | Operation[], want: Uint8Array): Promise<void> {
  const operations = payload instanceof Uint8Array ? [append(payload)] : payload;
  if (!equal(await payloadHash(operations), want)) {
    throw new InvalidProofError("the transaction has other operations than the payload");
  }
}

async function root(data: Uint8Array, leafIndex: bigint, treeSize: bigint, path: Uint8Array[]): Promise<Uint8Array> {
  if (path.some((hash) => hash.length !== 32)) throw new InvalidProofError("a hash must have 32 bytes");
  const leaf = await leafHash(data);
  return (await followPath(leaf, { leafIndex, treeSize, path })).at(-1)?.node ?? leaf;
}

function readHeader(r: Reader): {
  scope: Scope; height: bigint; txRoot: Uint8Array; count: bigint; committedAt: bigint;
} {
  if (r.byte() !== 1) throw new InvalidProofError("the header is of a version that is not known here");
  const scope = { organization: r.text(), vault: r.text() };
  const height = r.uvarint();
  r.take(32);
  const header = { scope, height, txRoot: r.take(32), count: r.uvarint(), committedAt: r.big64() };
  r.end();
  if (header.count === 0n || header.count > 1n << 31n) throw new InvalidProofError("the header does not decode");
  return header;
}

/** readLeaf reads the leaf of a transaction. */
function readLeaf(r: Reader): {
  ledger: string; txId: string; index: bigint; committedAt: bigint; scope: Scope; clientId: string; session: bigint;
  sequence: bigint; actor: string; payloadHash: Uint8Array; changed: boolean[];
} {
  const version = r.byte();
  if (version !== 1 && version !== 2) throw new InvalidProofError("the leaf is of a version that is not known here");
  const [ledger, index, committedAt] = [r.big64(), r.big64(), r.big64()];
  const scope = { organization: r.text(), vault: r.text() };
  const clientId = r.text();
  r.uvarint();
  const [session, sequence] = [r.uvarint(), r.uvarint()];
  const hasKey = r.byte();
  if (hasKey > 1) throw new InvalidProofError("the leaf does not decode");
  if (hasKey === 1) r.take(16);
  r.take(16);
  const actor = r.text();
  if (version === 2) {
    r.text();
    r.text();
    r.take(32);
  }
  const operations = Number(r.uvarint());
  if (operations < 1 || operations > maxOperations) throw new InvalidProofError("the leaf does not decode");
  const payloadHash = r.take(32);
  const bits = r.bytes();
  r.end();
  const all = Array.from({ length: 8 * bits.length }, (_, i) => (bits[i >> 3]! >> (i & 7) & 1) === 1);
  const whole = bits.length === 0; // where there are no bits each operation has changed something
  const changed = whole ? new Array<boolean>(operations).fill(true) : all.slice(0, operations);
  const spare = all.slice(operations);
  if (!whole && (spare.length > 7 || changed.length < operations || spare.includes(true) || !changed.includes(false))) {
    throw new InvalidProofError("the leaf does not decode");
  }
  const high = (ledger >> 16n << 16n) | 8n << 12n | (ledger >> 4n & 0xfffn);
  const low = 2n << 62n | (ledger & 0xfn) << 58n | index;
  const id = high.toString(16).padStart(16, "0") + low.toString(16).padStart(16, "0");
  const txId = id.replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");
  return {
    ledger: ledger.toString(16).padStart(16, "0"), txId, index, committedAt, scope, clientId, session, sequence, actor,
    payloadHash, changed,
  };
}

/** Reader reads the encodings of ledger/FORMAT.md. */
class Reader {
  private at = 0;

  constructor(private readonly b: Uint8Array) {}

  take(n: number): Uint8Array {
    if (n > this.b.length - this.at) throw new InvalidProofError("the receipt is cut off");
    this.at += n;
    return this.b.slice(this.at - n, this.at);
  }

  rest(): Uint8Array {
    return this.take(this.b.length - this.at);
  }

  end(): void {
    if (this.at !== this.b.length) throw new InvalidProofError("the receipt has too many bytes");
  }

  byte(): number {
    return this.take(1)[0]!;
  }

  big64(): bigint {
    return new DataView(this.take(8).buffer).getBigUint64(0);
  }

  uvarint(): bigint {
    let v = 0n;
    for (let shift = 0n; shift < 64n; shift += 7n) {
      const b = this.byte();
      v |= BigInt(b & 0x7f) << shift;
      if (b === 0 && shift > 0n || v >= 1n << 64n) break; // each number has one form
      if (b < 0x80) return v;
    }
    throw new InvalidProofError("a number in the receipt does not decode");
  }

  bytes(): Uint8Array {
    return this.take(Number(this.uvarint()));
  }

  text(): string {
    return utf8(this.bytes(), "a name in the receipt");
  }
}

/** utf8 decodes all bytes: by default a decoder drops a mark at the beginning, which is part of a name. */
function utf8(b: Uint8Array, what: string): string {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(b);
  } catch {
    throw new InvalidProofError(`${what} is no text`);
  }
}

function after(line: string, prefix: string): string {
  if (!line.startsWith(prefix)) throw new InvalidProofError(`the receipt has no line ${prefix.trim()}`);
  return line.slice(prefix.length);
}
