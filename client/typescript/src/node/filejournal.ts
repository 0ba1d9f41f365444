// A journal in a file, in the format of client/JOURNAL.md: a Go program and a Node program can continue each other's
// journals.

import { spawnSync } from "node:child_process";
import { randomBytes } from "node:crypto";
import { constants } from "node:fs";
import { type FileHandle, lstat, open, readFile, realpath, rename } from "node:fs/promises";
import { dirname, resolve } from "node:path";
import { messageOf } from "../errors.js";
import { Journal, JournalError, type JournalOptions, type JournalStorage } from "../journal.js";
import { type Decoded, decodeRecords } from "../records.js";

const magic = Buffer.from("seqljrnl");
const marker = Buffer.from([0xf7, 0x47, 0x52, 0x50]);
const version = 1;
const headerBytes = 24;
const groupHeader = 12;
// Zeros are written ahead of the groups, so that for most syncs the file system need not record that the file has
// grown.
const maxAhead = 256 << 10;

/**
 * fileJournal opens the journal at a path and creates it if necessary. It locks path + ".lock" against other processes,
 * including Go programs. It reads and checks the content, and rewrites it.
 *
 * The lock is advisory (flock). It is taken by one of the programs flock, which is part of util-linux and of BusyBox,
 * and perl, which macOS has.
 *
 * It throws a JournalError, "locked", "missing", "version" or "damaged", or an error of the file system.
 */
export async function fileJournal(path: string, options: JournalOptions = {}): Promise<Journal> {
  Journal.validate(options);
  path = await resolveLinks(resolve(path));
  const lock = await lockFile(`${path}.lock`, path);
  const storage = new FileStorage(path, lock, Math.min(maxAhead, Math.floor((options.maxBytes ?? 64 << 20) / 16)));
  try {
    return await Journal.open(storage, await load(path, options.mustExist ?? false), options);
  } catch (e) {
    await storage.close();
    throw e;
  }
}

/** Follows symbolic links: otherwise the same journal could be opened twice under different names. */
async function resolveLinks(path: string): Promise<string> {
  try {
    return await realpath(path);
  } catch (e) {
    if (!isMissing(e)) throw e;
  }
  const link = await lstat(path).catch(() => undefined);
  if (link !== undefined) {
    throw new JournalError(
      "missing", `${path} is a symbolic link to a missing file; remove the link or restore the file`,
    );
  }
  return path; // it will be created
}

const isMissing = (e: unknown): boolean => (e as { code?: string }).code === "ENOENT";

// Programs that lock the file inherited as descriptor 3 (flock), and exit with 1 if another process has it locked.
// Linux has the first, macOS and the BSDs the second.
const lockers: [program: string, ...args: string[]][] = [
  ["flock", "-n", "3"],
  ["perl", "-e", `
    use Fcntl ":flock";
    open(my $file, "+<&=", 3) or die "descriptor 3: $!";
    exit 0 if flock($file, LOCK_EX | LOCK_NB);
    exit 1 if $!{EWOULDBLOCK};
    die "flock: $!";
  `],
];

/**
 * Locks a file. Node has no call for flock, so another program locks the file that it inherits. The lock belongs to the
 * open file, so it remains after that program has exited, until this process closes the file or dies. A lock file that
 * is merely created would outlive a killed process.
 */
async function lockFile(lockPath: string, path: string): Promise<FileHandle> {
  const handle = await open(lockPath, constants.O_RDWR | constants.O_CREAT, 0o600);
  let reason = "";
  for (const [program, ...args] of lockers) {
    const result = spawnSync(program, args, { stdio: ["ignore", "ignore", "pipe", handle.fd] });
    if (result.status === 0) return handle;
    if (result.status === 1) {
      await handle.close();
      throw new JournalError("locked", `journal ${path} is locked by another process`);
    }
    reason += `; ${program}: ${result.error === undefined ? result.stderr.toString().trim() : messageOf(result.error)}`;
  }
  await handle.close();
  throw new Error(`journal ${path} cannot be locked, which takes one of the programs flock and perl${reason}`);
}

async function load(path: string, mustExist: boolean): Promise<Decoded[]> {
  let content: Buffer;
  try {
    content = await readFile(path);
  } catch (e) {
    if (!isMissing(e)) throw e;
    if (!mustExist) return [];
    throw new JournalError(
      "missing",
      `${path} is missing; if it was lost, find out from the ledger what was written before you begin a new one`,
    );
  }
  return scan(path, content).flatMap((group) => group.records);
}

/** @internal Group holds the records that one sync made durable, and their position in the file. */
export interface Group {
  offset: number;
  records: Decoded[];
}

/**
 * @internal Reads all groups. An invalid group at the end is torn: it was being written when the process or the machine
 * stopped, so nothing in it had been sent. An invalid group with a valid one after it is damage, because a group is
 * only written after the sync of the previous one.
 */
export function scan(path: string, content: Buffer): Group[] {
  const damaged = (offset: number, reason: string): JournalError =>
    new JournalError("damaged", `journal ${path} is damaged at byte ${offset}: ${reason}`);
  const reason = headerError(path, content);
  if (reason !== "") throw damaged(0, reason);
  const salt = content.subarray(12, 20);
  const groups: Group[] = [];
  let offset = headerBytes;
  while (offset < content.length) {
    const group = groupAt(content, salt, offset);
    if (typeof group === "string") {
      if (offset >= written(content)) break; // the rest is space for future groups
      for (let at = content.indexOf(marker, offset + 1); at >= 0; at = content.indexOf(marker, at + 1)) {
        if (typeof groupAt(content, salt, at) !== "string") {
          throw damaged(offset, `${group}, and a good group follows at byte ${at}`);
        }
      }
      break;
    }
    try {
      groups.push({ offset, records: decodeRecords(group) });
    } catch (e) {
      throw damaged(offset, messageOf(e));
    }
    offset += groupHeader + group.length;
  }
  return groups;
}

/** @internal Returns the beginning of a file. */
export function fileHeader(salt: Uint8Array): Buffer {
  const header = Buffer.alloc(headerBytes);
  header.set(magic);
  header.writeUInt32LE(version, 8);
  header.set(salt, 12);
  header.writeUInt32LE(crc32c(header.subarray(0, 20)), 20);
  return header;
}

function headerError(path: string, content: Buffer): string {
  if (content.length < headerBytes) {
    return `${content.length} bytes are too few for a header, which no crash leaves behind`;
  }
  if (!content.subarray(0, 8).equals(magic)) return "it does not begin as a journal";
  if (crc32c(content.subarray(0, 20)) !== content.readUInt32LE(20)) return "the header's checksum does not match";
  const found = content.readUInt32LE(8);
  if (found !== version) {
    throw new JournalError(
      "version",
      `journal ${path} has format version ${found}, and this program reads version ${version}; keep it and use the ` +
        "program that wrote it",
    );
  }
  return "";
}

/** The position at which the zeros at the end begin. */
function written(content: Buffer): number {
  let end = content.length;
  while (end > 0 && content[end - 1] === 0) end--;
  return end;
}

/** Returns the records of the group at an offset, or why there is no valid group. */
function groupAt(content: Buffer, salt: Uint8Array, offset: number): Buffer | string {
  const rest = content.subarray(offset);
  if (rest.length < groupHeader) return "a group's header ends in the middle";
  if (!rest.subarray(0, 4).equals(marker)) return "no group begins here";
  const n = rest.readUInt32LE(4);
  if (n === 0) return "a group without records";
  if (n > rest.length - groupHeader) return "a group ends in the middle";
  const records = rest.subarray(groupHeader, groupHeader + n);
  return groupSum(salt, offset, records) === rest.readUInt32LE(8) ? records : "a group's checksum does not match";
}

/** The sum also covers the group's position: a moved group is as invalid as one with a flipped bit. */
function groupSum(salt: Uint8Array, offset: number, records: Uint8Array): number {
  const seed = Buffer.alloc(20);
  seed.set(salt);
  seed.writeBigUInt64LE(BigInt(offset), 8);
  seed.writeUInt32LE(records.length, 16);
  return crc32c(records, crc32c(seed));
}

/** @internal Returns a group with its header. */
export function sealGroup(salt: Uint8Array, offset: number, records: Uint8Array): Buffer {
  const group = Buffer.alloc(groupHeader + records.length);
  group.set(marker);
  group.writeUInt32LE(records.length, 4);
  group.writeUInt32LE(groupSum(salt, offset, records), 8);
  group.set(records, groupHeader);
  return group;
}

const castagnoli = new Uint32Array(256).map((_, n) => {
  for (let bit = 0; bit < 8; bit++) n = n & 1 ? (n >>> 1) ^ 0x82f63b78 : n >>> 1;
  return n;
});

/** CRC-32C (Castagnoli), which Node's zlib does not have. */
function crc32c(bytes: Uint8Array, before = 0): number {
  let sum = ~before;
  for (let i = 0; i < bytes.length; i++) sum = castagnoli[(sum ^ bytes[i]!) & 0xff]! ^ (sum >>> 8);
  return ~sum >>> 0;
}

/** FileStorage stores a journal in a file. */
class FileStorage implements JournalStorage {
  readonly name: string;
  private current: FileHandle | undefined;
  private salt: Uint8Array = new Uint8Array(8);
  /** The position of the next group; zeros follow up to allocated. */
  private size = 0;
  private allocated = 0;

  constructor(
    private readonly path: string,
    private readonly lock: FileHandle,
    private readonly ahead: number,
  ) {
    this.name = `journal ${path}`;
  }

  async extend(records: Uint8Array): Promise<void> {
    let group = sealGroup(this.salt, this.size, records);
    const end = this.size + group.length;
    if (end > this.allocated) {
      group = Buffer.concat([group, Buffer.alloc(this.ahead)]);
      this.allocated = this.size + group.length;
    }
    await writeAll(this.current!, group, this.size);
    this.size = end;
    await this.current!.datasync();
  }

  /** Replaces the file by a new one. A crash at any point leaves one of the two, complete. */
  async replace(records: Uint8Array): Promise<void> {
    const salt = randomBytes(8);
    const header = fileHeader(salt);
    const group = records.length === 0 ? Buffer.alloc(0) : sealGroup(salt, headerBytes, records);
    const next = await open(`${this.path}.new`, "w", 0o600);
    try {
      await writeAll(next, Buffer.concat([header, group, Buffer.alloc(this.ahead)]), 0);
      await next.sync();
      await rename(`${this.path}.new`, this.path);
      // Until the directory is on disk, a power failure could restore the old file, without what is appended to the new
      // one from here on.
      const directory = await open(dirname(this.path), "r");
      await directory.sync().finally(() => directory.close());
    } catch (e) {
      await next.close();
      throw e;
    }
    await this.current?.close();
    this.current = next;
    this.salt = salt;
    this.size = headerBytes + group.length;
    this.allocated = this.size + this.ahead;
  }

  async close(): Promise<void> {
    await this.current?.close();
    await this.lock.close();
  }
}

async function writeAll(file: FileHandle, bytes: Buffer, position: number): Promise<void> {
  for (let done = 0; done < bytes.length; ) {
    const { bytesWritten } = await file.write(bytes, done, bytes.length - done, position + done);
    done += bytesWritten;
  }
}
