import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { copyFileSync, existsSync, readFileSync, statSync, symlinkSync, watch, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { append, JournalError, OtherLedgerError, setEntity, UnsettledError } from "../src/index.js";
import { fileHeader, scan, sealGroup } from "../src/node/filejournal.js";
import { fileJournal } from "../src/node/index.js";
import { RecordBuffer } from "../src/records.js";
import { clientOf, type Fault, FaultProxy, goPayer, payloads, run, startLedger, temporary } from "./support.js";

const scope = { organization: "acme", vault: "main" };
const goJournals = join(import.meta.dirname, "..", "..", "..", "journal", "testdata");

/** The output of seqledger journal show. */
function show(path: string): { tornBytes: string; streams: { clientId: string; writes: unknown[] }[] } {
  return JSON.parse(run("journal", "show", path, "--json"));
}

test("the bytes of the format are read as Go reads them, and written as Go writes them", async (t) => {
  const golden = join(goJournals, "golden.journal");
  const content = readFileSync(golden);
  const groups = scan(golden, content);
  const kinds = new Set(groups.flatMap(({ records }) => records.map((r) => r.kind)));
  const every = ["acknowledged", "dropped", "head", "remembered", "settled", "stream", "write"];
  assert.deepEqual([...kinds].sort(), every);
  const salt = content.subarray(12, 20);
  const again = groups.map(({ offset, records }) => {
    const buffer = new RecordBuffer();
    for (const r of records) {
      if (r.kind === "stream") buffer.stream(r.number, r.name);
      else buffer.record(r.number, r);
    }
    return sealGroup(salt, offset, buffer.take());
  });
  const bytes = Buffer.concat([fileHeader(salt), ...again]);
  assert.equal(bytes.toString("hex"), content.subarray(0, bytes.length).toString("hex"));
  assert.ok(content.subarray(bytes.length).every((b) => b === 0), "everything behind it is allocated");
  const path = join(temporary(t), "journal");
  copyFileSync(golden, path);
  const journal = await fileJournal(path, { mustExist: true });
  const told = journal.contents().map(({ name, head, entries }) => ({
    name, session: head.session, next: head.nextSequence, tags: entries.map((e) => e.tag),
  }));
  assert.deepEqual(told.find((s) => s.name.organization === "acme"), {
    name: { organization: "acme", vault: "main", clientId: "till ü 1" }, session: 1n << 40n, next: 131n,
    tags: ["under way"],
  });
  const before = show(golden);
  await journal.close();
  assert.deepEqual(show(path).streams, before.streams);
});

test("what Node journals is what Go shows", async (t) => {
  const { address } = await startLedger(t);
  const path = join(temporary(t), "journal");
  const proxy = await FaultProxy.start(t, address);
  const client = clientOf(t, proxy.address);
  const journal = await fileJournal(path);
  const writer = await client.openWriter({ scope, clientId: "till-1", journal });
  const settled = writer.submit([setEntity("a", "1"), append("zwei €")], { tag: "tag ü" });
  await settled.settled;
  const acknowledged = writer.submit([append("gone")], { tag: "gone" });
  await acknowledged.settled;
  await acknowledged.acknowledge();
  const sent = new Promise<void>((resolve) => {
    proxy.fault = () => (resolve(), "drop");
  });
  const open = writer.submit([append("open")]);
  await sent;
  await journal.sync();
  const [stream] = show(path).streams as unknown as [Record<string, unknown> & { writes: Record<string, unknown>[] }];
  const expected = [["1", "tag ü", settled.key, "settled"], ["3", undefined, open.key, "unsettled"]];
  assert.deepEqual(stream.writes.map((w) => [w["sequence"], w["tag"], w["idempotencyKey"], w["state"]]), expected);
  assert.equal(stream["session"], String(writer.position.session));
  await client.close().catch(() => {});
  await journal.close();
  assert.equal(show(path).tornBytes, "0");
});

test("a second process is refused, Go's and Node's, until the first one ends", async (t) => {
  const { address } = await startLedger(t);
  const dir = temporary(t);
  const path = join(dir, "journal");
  const journal = await fileJournal(path);
  await assert.rejects(fileJournal(path), (e) => e instanceof JournalError && e.reason === "locked");
  const args = [address, path, join(dir, "done"), "1"];
  const refused = await start(goPayer, args).ended;
  assert.match(refused.output, /locked by another process/);
  await journal.close();
  assert.equal((await start(goPayer, args).ended).code, 0);
  await assert.rejects(fileJournal(join(dir, "absent"), { mustExist: true }), /is missing/);
});

test("where there is no program flock, perl takes the same lock", async (t) => {
  const dir = temporary(t);
  const path = join(dir, "journal");
  const { PATH } = process.env;
  t.after(() => (process.env["PATH"] = PATH));
  process.env["PATH"] = dir;
  await assert.rejects(fileJournal(path), /one of the programs flock and perl; flock: .*ENOENT; perl: .*ENOENT/);
  symlinkSync("/usr/bin/perl", join(dir, "perl"));
  const journal = await fileJournal(path);
  await assert.rejects(fileJournal(path), (e) => e instanceof JournalError && e.reason === "locked");
  assert.match((await start(goPayer, ["127.0.0.1:1", path, join(dir, "done"), "1"]).ended).output, /locked by another/);
  process.env["PATH"] = PATH;
  await assert.rejects(fileJournal(path), (e) => e instanceof JournalError && e.reason === "locked");
  await journal.close();
  const again = await fileJournal(path);
  process.env["PATH"] = dir;
  await assert.rejects(fileJournal(path), (e) => e instanceof JournalError && e.reason === "locked");
  await again.close();
});

test("a torn group is left out, and damage is refused with its place", async (t) => {
  const path = join(temporary(t), "journal");
  const journal = await fileJournal(path);
  const name = { organization: "acme", vault: "", clientId: "c" };
  journal.claim(name);
  const ends: number[] = [];
  for (let i = 1n; i <= 3n; i++) {
    const head = { ledger: 1n, session: i, attempt: new Uint8Array(16), nextId: 0n, nextSequence: 1n };
    journal.append(name, { kind: "head", head });
    await journal.sync();
    ends.push(readFileSync(path).findLastIndex((b) => b !== 0) + 1);
  }
  journal.release(name);
  await journal.close();
  const content = readFileSync(path);
  for (let at = 0; at < ends[2]!; at += 5) {
    const flipped = Buffer.from(content);
    flipped[at]! ^= 0x40;
    writeFileSync(path, flipped);
    if (at < ends[1]!) {
      await assert.rejects(fileJournal(path), (e) => e instanceof JournalError && e.reason === "damaged", `byte ${at}`);
      continue;
    }
    const opened = await fileJournal(path); // the last group is torn: it was never synced
    assert.equal(opened.contents()[0]!.head.session, 2n, `byte ${at}`);
    await opened.close();
  }
});

test("a journal of another version is not called damaged", async (t) => {
  const path = join(temporary(t), "journal");
  copyFileSync(join(goJournals, "version2.journal"), path);
  const message = `journal ${path} has format version 2, and this program reads version 1; keep it and use the ` +
    "program that wrote it";
  await assert.rejects(fileJournal(path), { name: "JournalError", reason: "version", message });
});

test("a journal of another ledger is not sent", async (t) => {
  const [one, other] = [await startLedger(t), await startLedger(t)];
  const path = join(temporary(t), "journal");
  const journal = await fileJournal(path);
  const proxy = await FaultProxy.start(t, one.address);
  const writer = await clientOf(t, proxy.address).openWriter({ scope, clientId: "till-1", journal });
  const closing = new AbortController();
  proxy.fault = () => (closing.abort(), "drop");
  const p = writer.submit([append("x")]);
  await assert.rejects(writer.close({ signal: closing.signal }), UnsettledError);
  const again = clientOf(t, other.address).openWriter({ scope, clientId: "till-1", journal });
  await assert.rejects(again, (e) => e instanceof UnsettledError && e.cause instanceof OtherLedgerError &&
    e.writes.length === 1 && e.writes[0]!.key === p.key);
  await journal.forget({ ...scope, clientId: "till-1" });
  await clientOf(t, other.address).openWriter({ scope, clientId: "till-1", journal });
  assert.deepEqual(payloads(one.address), []);
});

test("a journal is rewritten before it outgrows its bound", async (t) => {
  const path = join(temporary(t), "journal");
  const journal = await fileJournal(path, { maxBytes: 64 << 10 });
  const name = { organization: "acme", vault: "", clientId: "c" };
  const { head } = journal.claim(name);
  journal.append(name, { kind: "head", head: { ...head, ledger: 1n, session: 1n, nextSequence: 1n } });
  for (let id = 0n; id < 2000n; id++) {
    const write = { id, sequence: id + 1n, reserve: 0, key: "k", tag: "", request: new Uint8Array(100) };
    journal.append(name, { kind: "write", write });
    journal.append(name, { kind: "settled", id, receipt: new Uint8Array(0) });
    if (id % 7n === 0n) await journal.sync();
  }
  await journal.sync();
  assert.ok(statSync(path).size < 64 << 10);
  const write = { id: 2000n, sequence: 2001n, reserve: 0, key: "k", tag: "", request: new Uint8Array(20 << 10) };
  assert.throws(() => journal.append(name, { kind: "write", write }), /needs .* bytes/);
  await journal.close();
  assert.equal(show(path).streams.length, 1);
});

/** A process, and its standard error output. */
interface Process {
  kill: () => void;
  ended: Promise<{ code: number | null; output: string }>;
}

function start(program: string, args: string[]): Process {
  const child = spawn(program, args, { stdio: ["ignore", "inherit", "pipe"] });
  let output = "";
  child.stderr.on("data", (chunk: Buffer) => (output += chunk.toString()));
  const ended = new Promise<{ code: number | null; output: string }>((resolve) =>
    child.once("close", (code) => resolve({ code, output })),
  );
  return { kill: () => child.kill("SIGKILL"), ended };
}

const kills = Number(process.env["KILLS"] ?? 100);
const seed = Number(process.env["SEED"] ?? Math.floor(Math.random() * 2 ** 31));

/** A random number generator from 0 to 1 (mulberry32) with a seed, so that a failing run can be repeated. */
function random(state: number): () => number {
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let x = Math.imul(state ^ (state >>> 15), 1 | state);
    x = (x + Math.imul(x ^ (x >>> 7), 61 | x)) ^ x;
    return ((x ^ (x >>> 14)) >>> 0) / 2 ** 32;
  };
}

test(`killed ${kills} times in the middle of its writes, a program pays each once`, { timeout: 900_000 }, async (t) => {
  t.diagnostic(`repeat with SEED=${seed} KILLS=${kills}`);
  const next = random(seed);
  const { address } = await startLedger(t);
  const dir = temporary(t);
  const payments = kills * 12; // more than the runs before the last one can make
  const proxy = await FaultProxy.start(t, address);
  const files = [join(dir, "journal"), join(dir, "done"), String(payments)];
  // The proxy does not support HTTP/2, which the Go client needs for its stream.
  const startOne = (go: boolean): Process => {
    if (go) return start(goPayer, [address, ...files]);
    return start(process.execPath, [join(import.meta.dirname, "payer.js"), proxy.address, ...files]);
  };
  for (let killed = 0; killed < kills; ) {
    const go = killed % 2 === 1; // the two take turns, so that each resumes from the other equally often
    let left = 1 + Math.floor(next() * (go ? 30 : 7)); // requests, or changes of its files, until the kill
    const files = go ? watch(dir, () => --left === 0 && child.kill()) : undefined;
    const child = startOne(go);
    proxy.fault = (): Fault => {
      if (--left === 0) child.kill();
      return (["none", "none", "lose", "drop", "hold"] as const)[Math.floor(next() * 5)]!;
    };
    const { code, output } = await child.ended;
    files?.close();
    assert.equal(code, null, `everything is paid after ${killed} kills: ${output}`);
    killed++;
    if (next() < 0.5) await proxy.release(); // copies of a killed program's requests arrive late
  }
  proxy.fault = () => "none";
  const { code, output } = await startOne(false).ended;
  assert.equal(code, 0, output);
  await proxy.release();
  const intended = Array.from({ length: payments }, (_, i) => `pay-${i}`);
  const paid = payloads(address);
  const twice = paid.filter((p, i) => paid.indexOf(p) !== i);
  assert.deepEqual(twice, [], "paid twice");
  assert.deepEqual(intended.filter((p) => !paid.includes(p)), [], "not paid");
  assert.equal(paid.length, payments);
  // A crash between the note and the acknowledgement leads to a second note, but not to a second payment.
  const noted = new Set(readFileSync(join(dir, "done"), "utf8").trim().split("\n"));
  assert.deepEqual(intended.filter((p) => !noted.has(p)), [], "not noted");
  assert.ok(existsSync(join(dir, "journal.lock")));
});
