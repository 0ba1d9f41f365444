// Verifies receipts without a ledger, by WebCrypto. The formats are those of ledger/FORMAT.md and of c2sp.org: tlog-proof,
// tlog-checkpoint, signed-note and tlog-cosignature, with Ed25519.

import { equal, followPath, InvalidProofError, leafHash, sha256 } from "./proof.js";
import type { Instant, Scope } from "./types.js";

/** ReceiptPolicy says whose signatures are believed. Keys are vkeys, as a policy of c2sp.org/tlog-policy has them. */
export interface ReceiptPolicy {
  /** The key of the ledger. */
  log: string;
  /** Keys of witnesses. */
  witnesses?: string[];
  /** How many of them must have cosigned. Default: all of them. */
  quorum?: number;
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
  /** The names of the witnesses that have cosigned. */
  cosigners: string[];
}

/**
 * verifyReceipt hashes all of a receipt again and checks its signatures. It rejects with an InvalidProofError unless
 * everything holds. A policy without witnesses believes the operator of the ledger alone, who could show others
 * another history.
 */
export async function verifyReceipt(file: string, policy: ReceiptPolicy): Promise<VerifiedReceipt> {
  const cut = file.indexOf("\n\n");
  const lines = file.slice(0, Math.max(cut, 0)).split("\n");
  if (lines[0] !== "c2sp.org/tlog-proof@v1" || lines.length < 3) throw new InvalidProofError("it is no receipt");
  const [extra, index] = [after(lines[1]!, "extra "), after(lines[2]!, "index ")];
  const checkpoint = await openCheckpoint(file.slice(cut + 2), policy);
  const r = new Reader(unbase64(extra));
  if (r.byte() !== 1) throw new InvalidProofError("the receipt is of a version that is not known here");
  const leaf = r.bytes();
  const leafIndex = r.uvarint();
  const path: Uint8Array[] = [];
  for (let n = r.uvarint(); n > 0n; n--) path.push(r.take(32));
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
  const { txId, scope, clientId, session, sequence, actor, payloadHash, changed, committedAt: at } = transaction;
  const ledgerTime = { date: new Date(Number(at / 1_000_000n)), nanoseconds: Number(at % 1_000_000_000n) };
  return {
    txId, scope, clientId, session, sequence, actor, payloadHash, changed, ledgerTime, index: transaction.index,
    blockHeight: header.height, origin: checkpoint.origin, size: checkpoint.size, cosigners: checkpoint.cosigners,
  };
}

async function root(data: Uint8Array, leafIndex: bigint, treeSize: bigint, path: Uint8Array[]): Promise<Uint8Array> {
  if (path.some((hash) => hash.length !== 32)) throw new InvalidProofError("a hash must have 32 bytes");
  const leaf = await leafHash(data);
  return (await followPath(leaf, { leafIndex, treeSize, path })).at(-1)?.node ?? leaf;
}

interface Checkpoint {
  origin: string;
  size: bigint;
  root: Uint8Array;
  cosigners: string[];
}

/** openCheckpoint reads a signed note, once the policy is met. */
async function openCheckpoint(signed: string, policy: ReceiptPolicy): Promise<Checkpoint> {
  const cut = signed.indexOf("\n\n");
  const text = signed.slice(0, cut + 1);
  const [origin, size, hash] = text.split("\n");
  const signatures = signed.slice(cut + 2).split("\n").map((line) => line.split(" "));
  const signedBy = async (vkey: string): Promise<boolean> => {
    const key = await readKey(vkey);
    for (const [dash, name, encoded] of signatures) {
      if (dash !== "\u2014" || name !== key.name || encoded === undefined) continue;
      const raw = unbase64(encoded);
      if (equal(raw.subarray(0, 4), key.id) && await key.verify(text, raw.subarray(4))) return true;
    }
    return false;
  };
  if (cut < 0 || origin === undefined || size === undefined || hash === undefined) {
    throw new InvalidProofError("the receipt has no checkpoint");
  }
  if ((await readKey(policy.log)).name !== origin || !await signedBy(policy.log)) {
    throw new InvalidProofError(`the log of the policy has not signed this checkpoint of ${JSON.stringify(origin)}`);
  }
  const witnesses = policy.witnesses ?? [];
  const cosigners: string[] = [];
  for (const vkey of new Set(witnesses)) {
    if (await signedBy(vkey)) cosigners.push((await readKey(vkey)).name);
  }
  if (cosigners.length < (policy.quorum ?? witnesses.length)) {
    throw new InvalidProofError(`${cosigners.length} of ${witnesses.length} witnesses have cosigned`);
  }
  return { origin, size: decimal(size), root: unbase64(hash), cosigners };
}

interface Key {
  name: string;
  id: Uint8Array;
  verify: (text: string, signature: Uint8Array) => Promise<boolean>;
}

/** readKey reads a vkey. Type 1 signs the text, and type 4, of witnesses, a time and the text. */
async function readKey(vkey: string): Promise<Key> {
  const [name = "", id = "", ...encoded] = vkey.split("+");
  const raw = unbase64(encoded.join("+"));
  const kind = raw[0];
  const hash = await sha256(new TextEncoder().encode(`${name}\n`), raw);
  const idHex = [...hash.subarray(0, 4)].map((b) => b.toString(16).padStart(2, "0")).join("");
  if (raw.length !== 33 || kind !== 1 && kind !== 4 || idHex !== id) {
    throw new InvalidProofError(`${JSON.stringify(vkey)} is no public key`);
  }
  const key = await crypto.subtle.importKey("raw", raw.slice(1), { name: "Ed25519" }, false, ["verify"]);
  const verify = (text: string, signature: Uint8Array): Promise<boolean> => {
    let message = text;
    if (kind === 4) {
      if (signature.length !== 72) return Promise.resolve(false);
      message = `cosignature/v1\ntime ${new Reader(signature).big64()}\n${text}`;
    }
    const own = kind === 4 ? signature.slice(8) : signature.slice();
    return crypto.subtle.verify({ name: "Ed25519" }, key, own, new TextEncoder().encode(message));
  };
  return { name, id: hash.slice(0, 4), verify };
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
  if (r.byte() === 1) r.take(16);
  r.take(16);
  const actor = r.text();
  if (version === 2) {
    r.text();
    r.text();
    r.take(32);
  }
  const operations = Number(r.uvarint());
  const payloadHash = r.take(32);
  const bits = r.bytes();
  r.end();
  const changed = Array.from({ length: operations }, (_, i) =>
    bits.length === 0 || ((bits[i >> 3] ?? 0) >> (i & 7) & 1) === 1);
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
      if (b < 0x80) return v;
    }
    throw new InvalidProofError("a number in the receipt is too long");
  }

  bytes(): Uint8Array {
    return this.take(Number(this.uvarint()));
  }

  text(): string {
    try {
      return new TextDecoder("utf-8", { fatal: true }).decode(this.bytes());
    } catch {
      throw new InvalidProofError("a name in the receipt is no text");
    }
  }
}

function after(line: string, prefix: string): string {
  if (!line.startsWith(prefix)) throw new InvalidProofError(`the receipt has no line ${prefix.trim()}`);
  return line.slice(prefix.length);
}

function decimal(text: string): bigint {
  if (!/^(0|[1-9][0-9]{0,18})$/.test(text)) throw new InvalidProofError(`${JSON.stringify(text)} is no number`);
  return BigInt(text);
}

function unbase64(text: string): Uint8Array {
  try {
    return Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  } catch {
    throw new InvalidProofError(`${JSON.stringify(text)} is no base64`);
  }
}
