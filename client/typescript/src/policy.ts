// Keys, policies and signed checkpoints of transparency logs, as c2sp.org has them in signed-note, tlog-policy,
// tlog-checkpoint and tlog-cosignature, with Ed25519 of WebCrypto. It refuses what ledger/witness refuses.

import { equal, InvalidProofError, sha256 } from "./proof.js";

/** Cosigner is a witness that has cosigned a checkpoint. */
export interface Cosigner {
  /** Its name in the policy. */
  name: string;
  /** When it did, as it says. */
  time: Date;
}

export interface Checkpoint {
  origin: string;
  size: bigint;
  root: Uint8Array;
  /** In the order of the policy. */
  cosigners: Cosigner[];
}

interface Party {
  name: string; // a log's is the origin of its checkpoints
  key: Key;
}

export interface Policy {
  logs: Party[];
  witnesses: Party[];
  groups: { name: string; least: number; members: string[] }[];
  quorum: string;
}

interface Key {
  name: string;
  kind: number;
  id: Uint8Array;
  public: Uint8Array;
}

const none = "none";
const logKey = 1;
const witnessKey = 4;

/** parsePolicy reads a policy. An error names the line. */
export async function parsePolicy(text: string): Promise<Policy> {
  const p: Policy = { logs: [], witnesses: [], groups: [], quorum: "" };
  const inGroup = new Map<string, boolean>();
  const define = (name: string): void => {
    if (inGroup.has(name) || name === none) throw bad(`${JSON.stringify(name)} has a meaning already`);
    inGroup.set(name, false);
  };
  const read = async (line: string): Promise<void> => {
    if (/[\0-\x08\x0a-\x1f\x7f]/.test(line)) throw bad("only a newline may end a line");
    const [verb = "", ...f] = line.split(/[ \t]+/).filter((w) => w !== "");
    if (verb === "" || verb.startsWith("#")) return;
    if (verb === "log" && (f.length === 1 || f.length === 2)) {
      await addParty(p.logs, logKey, undefined, f[0]!);
    } else if (verb === "witness" && (f.length === 2 || f.length === 3)) {
      await addParty(p.witnesses, witnessKey, f[0], f[1]!);
      if (f[2] !== undefined && !/^https?:\/\/[^/?#]/i.test(f[2])) throw bad("the URL must be http:// or https://");
      define(f[0]!);
    } else if (verb === "group" && f.length >= 3) {
      const [name, least, ...members] = f as [string, string, ...string[]];
      for (const m of members) {
        if (inGroup.get(m) !== false) throw bad(`${m} must be defined in an earlier line, and in no other group`);
        inGroup.set(m, true);
      }
      const n = least === "all" ? members.length : least === "any" ? 1 : /^\d+$/.test(least) ? Number(least) : 0;
      if (n < 1 || n > members.length) throw bad(`${least} must be all, any or a number from 1 to ${members.length}`);
      p.groups.push({ name, least: n, members });
      define(name);
    } else if (verb === "quorum" && f.length === 1 && p.quorum === "") {
      p.quorum = f[0]!;
      if (p.quorum !== none && !inGroup.has(p.quorum)) throw bad(`${p.quorum} must be none, or defined before`);
    } else {
      throw bad("must be log VKEY [URL], witness NAME VKEY [URL], group NAME all|any|K MEMBER..., or quorum NAME, once");
    }
  };
  for (const [i, line] of text.split("\n").entries()) {
    await read(line).catch((e: unknown) => {
      throw e instanceof InvalidProofError ? new InvalidProofError(`the policy's line ${i + 1}: ${e.message}`) : e;
    });
  }
  if (text !== "" && !text.endsWith("\n")) throw bad("the policy does not end in a newline: it may be cut off");
  if (p.quorum === "") throw bad("the policy has no line quorum: quorum none needs no witness");
  return p;
}

/** addParty adds a log or a witness, whose key must be its own. */
async function addParty(parties: Party[], kind: number, name: string | undefined, vkey: string): Promise<void> {
  const key = await parseKey(vkey);
  if (key.kind !== kind) throw bad(`the key must be of the signature type ${kind}`);
  if (parties.some((o) => equal(o.key.public, key.public))) throw bad("an earlier line has the same key");
  parties.push({ name: name ?? key.name, key });
}

/** parseKey reads a vkey. */
async function parseKey(vkey: string): Promise<Key> {
  const [name = "", id = "", ...encoded] = vkey.split("+");
  const raw = unbase64(encoded.join("+"));
  const hash = (await sha256(new TextEncoder().encode(`${name}\n`), raw)).slice(0, 4);
  const kind = raw[0];
  if (raw.length !== 33 || kind !== logKey && kind !== witnessKey || hexOf(hash) !== id || !validName(name)) {
    throw bad(`${JSON.stringify(vkey)} is no public key: must be a name, a key id and an Ed25519 key, with + between`);
  }
  return { name, kind, id: hash, public: raw.slice(1) };
}

const validName = (name: string): boolean => name !== "" && !/[+\p{White_Space}\p{Cc}]/u.test(name);
const hexOf = (b: Uint8Array): string => [...b].map((x) => x.toString(16).padStart(2, "0")).join("");

/** openCheckpoint returns what a signed note says, once the policy is met. */
export async function openCheckpoint(signed: string, p: Policy): Promise<Checkpoint> {
  const cut = signed.lastIndexOf("\n\n");
  if (/[\0-\x09\x0b-\x1f]/.test(signed) || cut < 0 || !signed.endsWith("\n") || cut + 2 === signed.length) {
    throw bad("the receipt has no signed checkpoint");
  }
  const text = signed.slice(0, cut + 1);
  const lines = text.split("\n");
  const origin = lines[0]!;
  const parties = [...p.logs.filter((l) => l.name === origin), ...p.witnesses];
  const signers = new Map<Party, Uint8Array>(); // the signature of each
  const signatures = signed.slice(cut + 2, -1).split("\n");
  if (signatures.length > 100) throw bad("the checkpoint has more than 100 signatures");
  for (const line of signatures) {
    const [, name = "", encoded = ""] = /^\u2014 ([^ ]+) ([^ ]+)$/.exec(line) ?? [];
    const raw = unbase64(encoded);
    if (!validName(name) || raw.length < 5) throw bad("a signature of the checkpoint does not decode");
    const of = parties.find(({ key }) => key.name === name && equal(key.id, raw.subarray(0, 4)));
    if (of === undefined || signers.has(of)) continue;
    if (!await signs(of.key, text, raw.slice(4))) throw bad(`the signature of ${name} is not one of this checkpoint`);
    signers.set(of, raw.slice(4));
  }
  if (lines.length < 4 || lines.indexOf("") !== lines.length - 1) {
    throw bad("the checkpoint must have lines of origin, size and root hash, and no empty line");
  }
  const c: Checkpoint = { origin, size: decimal(lines[1]!), root: unbase64(lines[2]!), cosigners: [] };
  if (c.size > 1n << 62n || c.root.length !== 32) throw bad("the checkpoint is of no tree");
  if (![...signers.keys()].some((s) => p.logs.includes(s))) {
    throw bad(`no log of the policy has signed this checkpoint of ${JSON.stringify(origin)}`);
  }
  const met = new Set([none]);
  for (const w of p.witnesses) {
    const signature = signers.get(w);
    if (signature === undefined) continue;
    met.add(w.name);
    c.cosigners.push({ name: w.name, time: new Date(Number(timeOf(signature)) * 1000) });
  }
  for (const g of p.groups) { // members are defined before their group
    if (g.members.filter((m) => met.has(m)).length >= g.least) met.add(g.name);
  }
  if (!met.has(p.quorum)) {
    const of = `${c.cosigners.length} of ${p.witnesses.length}`;
    throw bad(`the quorum ${p.quorum} is not met: ${of} witnesses have cosigned`);
  }
  return c;
}

const timeOf = (cosignature: Uint8Array): bigint => new DataView(cosignature.buffer).getBigUint64(0);

/** signs verifies a signature. A witness signs a time, too. */
async function signs({ kind, public: raw }: Key, text: string, signature: Uint8Array): Promise<boolean> {
  const size = kind === witnessKey ? 72 : 64;
  if (signature.length !== size) return false;
  let message = text;
  if (kind === witnessKey) {
    const at = timeOf(signature);
    if (at === 0n || at >= 1n << 63n) return false;
    message = `cosignature/v1\ntime ${at}\n${text}`;
  }
  let key: CryptoKey;
  try {
    key = await crypto.subtle.importKey("raw", raw.slice(), { name: "Ed25519" }, false, ["verify"]);
  } catch (e) {
    if (e instanceof DOMException && e.name === "DataError") return false; // it is no point of the curve
    throw new Error("this runtime's WebCrypto has no Ed25519: nothing was verified", { cause: e });
  }
  const bytes = new TextEncoder().encode(message);
  return crypto.subtle.verify({ name: "Ed25519" }, key, signature.slice(size - 64), bytes);
}

/** decimal reads a number that is written in its only form. */
export function decimal(text: string): bigint {
  if (!/^(0|[1-9][0-9]{0,18})$/.test(text)) throw bad(`${JSON.stringify(text)} is no number`);
  return BigInt(text);
}

/** unbase64 reads bytes that are written in their only form. */
export function unbase64(text: string): Uint8Array<ArrayBuffer> {
  let raw = "";
  try {
    raw = atob(text);
  } catch { /* it is not the same below, either */ }
  if (btoa(raw) !== text) throw bad(`${JSON.stringify(text.slice(0, 80))} is no base64`);
  return Uint8Array.from(raw, (c) => c.charCodeAt(0));
}

const bad = (why: string): InvalidProofError => new InvalidProofError(why);
