// A journal in IndexedDB, for browsers.
//
// A database has one object store. Its records are the groups of a journal, under consecutive numbers. Each group is
// stored by one transaction, which completes once the group is on disk ("strict": by default browsers report completion
// earlier). A rewrite removes all groups and stores one, in one transaction. A Web Lock keeps every other page and
// worker of the origin out.

import { messageOf } from "./errors.js";
import { Journal, JournalError, type JournalOptions, type JournalStorage } from "./journal.js";
import { type Decoded, decodeRecords } from "./records.js";

/** IndexedDbOptions configure a journal in IndexedDB. */
export interface IndexedDbOptions extends JournalOptions {
  /** Waits while another page has the journal, instead of failing with a JournalError ("locked"). */
  wait?: boolean;
  /** Ends the wait. */
  signal?: AbortSignal;
}

const storeName = "groups";
const version = 1;
// The browser's own estimate is coarse, and the browser needs space for its files.
const marginBytes = 1 << 20;
const estimateEveryMs = 1000;
// A database that is being deleted or upgraded opens only once all its other connections are closed, and a page that
// ignores "versionchange" keeps its connection. The browser tells waiting pages nothing.
const openPatienceMs = 30_000;
// If the browser keeps cutting connections, this page cannot store anything.
const attempts = 3;

/**
 * indexedDbJournal opens the journal with a name in this origin's storage, and creates it if necessary. Only one page
 * or worker can have it open.
 *
 * A browser may delete the storage of an origin when the disk is nearly full, or when the user asks for it. persistent
 * tells whether the browser has agreed not to do so. A deleted journal looks like a new one: set mustExist if
 * the program has had one before. If the journal is deleted while it is open, the next write fails.
 */
export async function indexedDbJournal(
  name: string, options: IndexedDbOptions = {},
): Promise<Journal & { readonly persistent: boolean }> {
  Journal.validate(options);
  const persistent = (await navigator.storage?.persist?.().catch(() => false)) ?? false;
  const release = await lock(name, options);
  const storage = new IndexedDbStorage(name, release);
  try {
    const records = await storage.load(options.mustExist ?? false);
    return Object.assign(await Journal.open(storage, records, options), { persistent });
  } catch (e) {
    await storage.close();
    throw e;
  }
}

/** Acquires the lock of a journal, and returns the function that releases it. */
function lock(name: string, options: IndexedDbOptions): Promise<() => void> {
  const { locks } = navigator as { locks?: LockManager };
  if (locks === undefined) {
    return Promise.reject(new Error("this page has no Web Locks, which browsers have on https and localhost"));
  }
  return new Promise((resolve, reject) => {
    const wait = options.wait ?? false;
    const request: LockOptions = wait ? { signal: options.signal } : { ifAvailable: true };
    const held = locks.request(`seqledger journal ${name}`, request, (granted) => {
      if (granted === null) throw new JournalError("locked", `journal ${name} is open in another page`);
      return new Promise<void>((release) => resolve(release));
    });
    held.catch(reject);
  });
}

/** IndexedDbStorage stores a journal in a database. */
class IndexedDbStorage implements JournalStorage {
  readonly name: string;
  private db: IDBDatabase | undefined;
  private closed = false;
  /** The numbers of the first and the last group; there are none while first is greater than last. */
  private first = 1;
  private last = 0;
  /** Bytes that the origin may still store, as far as known. */
  private room = Infinity;
  private estimatedAt = -Infinity;
  /** Bytes given to the browser that its latest estimate may not have counted, including those being stored. */
  private uncounted = 0;
  private storing = 0;

  constructor(
    private readonly journal: string,
    private readonly release: () => void,
  ) {
    this.name = `journal ${journal}`;
  }

  /** Reads all groups. */
  async load(mustExist: boolean): Promise<Decoded[]> {
    await this.estimate();
    const db = await this.open();
    const { keys, groups } = await readAll(db);
    if (keys.length === 0 && mustExist) {
      throw new JournalError(
        "missing",
        `${this.name} is missing; if the browser has deleted it, find out from the ledger what was written before ` +
          "you begin a new one",
      );
    }
    const damaged = (reason: string): JournalError => new JournalError("damaged", `${this.name} is damaged: ${reason}`);
    keys.forEach((key, i) => {
      if (key !== (keys[0] as number) + i) throw damaged(`group ${String(key)} follows ${String(keys[i - 1])}`);
    });
    if (keys.length > 0) {
      this.first = keys[0] as number;
      this.last = keys.at(-1) as number;
    }
    try {
      return groups.flatMap((group) => [...decodeRecords(group)]);
    } catch (e) {
      throw damaged(messageOf(e));
    }
  }

  async extend(records: Uint8Array): Promise<void> {
    const next = this.last + 1;
    await this.change(next, records.length, (store) => store.add(records, next));
    this.last = next;
    void this.estimate();
  }

  async replace(records: Uint8Array): Promise<void> {
    // An empty journal has an empty group, which distinguishes it from a deleted one.
    const next = this.last + 1;
    await this.change(next, records.length, (store) => {
      store.clear();
      store.add(records, next);
    });
    this.first = this.last = next;
    void this.estimate();
  }

  /**
   * Makes a change in one transaction, after which the last group has the number next. Browsers sometimes cut the
   * connection of a page in the background. Then the database is opened again, and the groups in it tell whether the
   * change was already made.
   */
  private async change(next: number, bytes: number, change: (store: IDBObjectStore) => void): Promise<void> {
    this.storing = bytes;
    this.uncounted += bytes;
    try {
      await this.changeOnce(next, change);
    } catch (e) {
      if (isQuota(e)) throw new JournalError("no-space", `${this.name}: the browser has no room`, { cause: e });
      throw e;
    } finally {
      this.storing = 0;
    }
  }

  private async changeOnce(next: number, change: (store: IDBObjectStore) => void): Promise<void> {
    for (let attempt = 1; ; attempt++) {
      try {
        const db = await this.open();
        if (attempt > 1 && await this.made(db, next)) return;
        await this.transact(db, change);
        return;
      } catch (e) {
        if (this.closed || isQuota(e) || e instanceof JournalError || attempt === attempts) throw e;
        this.db?.close();
        this.db = undefined;
      }
    }
  }

  /** Reports whether the database contains the change after which the last group has the number next. */
  private async made(db: IDBDatabase, next: number): Promise<boolean> {
    const { keys } = await readAll(db, false);
    if (keys.at(-1) === next) return true;
    const intact = keys.at(-1) === next - 1 && keys[0] === this.first || (keys.length === 0 && next === 1);
    if (intact) return false;
    throw new JournalError("failed", "its groups are not those that were stored: the browser has deleted them");
  }

  private transact(db: IDBDatabase, change: (store: IDBObjectStore) => void): Promise<void> {
    // The deletion of a group between two transactions must not go unnoticed.
    const transaction = db.transaction(storeName, "readwrite", { durability: "strict" });
    const store = transaction.objectStore(storeName);
    const expected = this.last;
    const newest = store.openKeyCursor(null, "prev");
    newest.onsuccess = () => {
      if ((newest.result?.key ?? 0) !== expected) {
        transaction.abort();
        return;
      }
      change(store);
      transaction.commit();
    };
    return ended(db, transaction);
  }

  /** Opens the database, or returns the open connection. */
  private async open(): Promise<IDBDatabase> {
    if (this.closed) throw new Error("it is closed");
    if (this.db !== undefined) return this.db;
    const db = await openDatabase(`seqledger journal ${this.journal}`);
    if (this.closed) {
      db.close();
      throw new Error("it is closed");
    }
    db.onclose = () => {
      if (this.db === db) this.db = undefined;
    };
    // The database is being deleted, or a newer version of this package upgrades it. That must not wait for this page,
    // and the next change notices it.
    db.onversionchange = () => {
      db.close();
      if (this.db === db) this.db = undefined;
    };
    this.db = db;
    return db;
  }

  lacksRoom(bytes: number): string | undefined {
    const room = Math.max(0, this.room - this.uncounted);
    if (bytes + marginBytes <= room) return undefined;
    void this.estimate();
    return `the browser has room for ${room} bytes`;
  }

  private async estimate(): Promise<void> {
    const now = performance.now();
    if (now - this.estimatedAt < estimateEveryMs) return;
    this.estimatedAt = now;
    // The estimate does not include what is stored from here on; it may include what is being stored now.
    this.uncounted = this.storing;
    const { quota, usage } = (await navigator.storage?.estimate?.().catch(() => undefined)) ?? {};
    this.room = quota === undefined || usage === undefined ? Infinity : Math.max(0, quota - usage);
  }

  async close(): Promise<void> {
    this.closed = true;
    this.db?.close();
    this.release();
  }
}

/** Opens the database, or reports why that is not possible; it does not wait for other pages forever. */
function openDatabase(name: string): Promise<IDBDatabase> {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open(name, version);
    let late = false;
    const timer = setTimeout(() => {
      late = true;
      const seconds = openPatienceMs / 1000;
      reject(new JournalError(
        "locked", `database ${name} did not open within ${seconds} seconds: another page holds it; close that page`,
      ));
    }, openPatienceMs);
    request.onupgradeneeded = () => request.result.createObjectStore(storeName);
    request.onsuccess = () => {
      clearTimeout(timer);
      // An unused connection would block the next deletion or upgrade.
      if (late) request.result.close();
      else resolve(request.result);
    };
    request.onerror = () => {
      clearTimeout(timer);
      const e = request.error!;
      const newer = `database ${name} is that of a newer version of this program: load the page again`;
      reject(e.name === "VersionError" ? new JournalError("version", newer, { cause: e }) : e);
    };
    // "blocked" needs no handler: the request continues when the other connections are closed.
  });
}

/** Reads the numbers of the groups, and their bytes. */
async function readAll(db: IDBDatabase, bytes = true): Promise<{ keys: IDBValidKey[]; groups: Uint8Array[] }> {
  const transaction = db.transaction(storeName, "readonly");
  const store = transaction.objectStore(storeName);
  const keys = store.getAllKeys();
  const groups = bytes ? store.getAll() : undefined;
  await ended(db, transaction);
  return { keys: keys.result, groups: (groups?.result ?? []) as Uint8Array[] };
}

/**
 * Waits until a transaction is complete. A transaction that begins just as Chromium cuts the connection gets neither
 * "complete" nor "abort": the connection's "close" is the last event.
 */
function ended(db: IDBDatabase, transaction: IDBTransaction): Promise<void> {
  const over = new AbortController();
  const { signal } = over;
  return new Promise<void>((resolve, reject) => {
    const fail = (): void => reject(transaction.error ?? new Error("the browser has ended the transaction"));
    transaction.addEventListener("complete", () => resolve(), { signal });
    transaction.addEventListener("abort", fail, { signal });
    db.addEventListener("close", fail, { signal });
  }).finally(() => over.abort());
}

const isQuota = (e: unknown): boolean => e instanceof DOMException && e.name === "QuotaExceededError";
