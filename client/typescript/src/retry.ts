// Waiting and retrying.

import { ClosedError, LedgerError, OtherLedgerError, ProtocolError, WriteErrorCode } from "./errors.js";

const backoffFirstMs = 10;
const backoffMaxMs = 2000;
// A longer retry_after is reduced to this, so that one bad answer cannot stop a Writer for a day.
const retryAfterMaxMs = 60_000;
// How long the ledger must refuse the token before the refusal is final: the token may be renewed, or an operator may
// restore a key that was removed by mistake.
const tokenPatienceMs = 60_000;

/**
 * backoff returns how long to wait before retry number attempt (from 0). The wait is exponential, with the upper half
 * random, so that clients that failed together do not retry together.
 */
export function backoff(attempt: number, retryAfterMs = 0): number {
  const wait = attempt < 10 ? Math.min(backoffMaxMs, backoffFirstMs * 2 ** attempt) : backoffMaxMs;
  return Math.max(wait / 2 + (Math.random() * wait) / 2, Math.min(retryAfterMs, retryAfterMaxMs));
}

/** sleep waits, and rejects with the signal's reason if the signal ends the wait. */
export function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const stop = (): void => {
      clearTimeout(timer);
      reject(signal!.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, ms);
    signal?.addEventListener("abort", stop, { once: true });
    if (signal?.aborted) stop();
  });
}

/** Patience decides when the ledger's refusal of a token is final. */
export class Patience {
  private since: number | undefined;

  /** Records an answer, and reports whether all answers for a minute were refusals of the token. */
  isOver(e: unknown): boolean {
    if (!(e instanceof LedgerError) || !e.challenged) {
      this.since = undefined;
      return false;
    }
    this.since ??= performance.now();
    return performance.now() - this.since >= tokenPatienceMs;
  }

  reset(): void {
    this.since = undefined;
  }
}

/**
 * retrying calls attempt until it succeeds, fails with a final error, or the signal ends it. Answers that are not the
 * ledger's own are not final here: a Writer must survive a load balancer that fails for half a second. TOO_MANY_STREAMS
 * is not final either, because streams are evicted all the time.
 */
export async function retrying<T>(signal: AbortSignal, attempt: () => Promise<T>): Promise<T> {
  const denied = new Patience();
  for (let failures = 0; ; failures++) {
    try {
      return await attempt();
    } catch (e) {
      if (signal.aborted) throw new ClosedError("the Writer", { cause: e });
      const final = e instanceof LedgerError && e.isFinal && e.code !== WriteErrorCode.TOO_MANY_STREAMS;
      const over = denied.isOver(e);
      if (final || over || e instanceof ProtocolError || e instanceof OtherLedgerError) throw e;
      await sleep(backoff(failures, e instanceof LedgerError ? e.retryAfterMs : 0), signal).catch(() => {
        throw new ClosedError("the Writer", { cause: e });
      });
    }
  }
}
