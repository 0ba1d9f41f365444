// What a client says while its server does not answer. Calls and Writers retry without end, so that a wrong address, or
// a page whose origin the server does not allow, would otherwise look like a slow network.

import type { LedgerError } from "./errors.js";

// A restart or a failover takes less.
const patienceMs = 3000;
const probeMs = 5000;

/** Page is the part of the platform that tells where a page is from; absent outside of a browser. */
interface Page {
  location?: { origin: string; protocol: string };
}

/** Outage reports once, after three seconds in which no call succeeded, until a call succeeds. */
export class Outage {
  private since: number | undefined;
  private reported = false;

  constructor(
    private readonly baseUrl: string,
    private readonly log: (problem: string) => void,
  ) {}

  /** Records a call that succeeded, or that the ledger refused. */
  over(): void {
    this.since = undefined;
    this.reported = false;
  }

  /** Records a call that will be repeated. */
  failed(e: LedgerError): void {
    this.since ??= performance.now();
    if (this.reported || performance.now() - this.since < patienceMs) return;
    this.reported = true;
    void this.report(e);
  }

  private async report(e: LedgerError): Promise<void> {
    const problem = `seqledger: ${this.baseUrl} has not answered for ${patienceMs / 1000} seconds, and is tried again: ` +
      e.message;
    const advice = e.wire || e.status !== 0 ? "" : await this.advice();
    if (this.reported) this.log(problem + advice);
  }

  /** Says why a call may have failed that got no answer. A browser tells no page the reason. */
  private async advice(): Promise<string> {
    const { location } = globalThis as Page;
    const base = new URL(this.baseUrl);
    if (location === undefined || !/^https?:$/.test(location.protocol)) {
      return ". Is the server running, and is the address right?";
    }
    if (location.origin === base.origin) return ". Is the server running?";
    const allow = `(seqledger serve --cors-origin ${location.origin})`;
    try {
      // An answer that the page cannot read still shows that there is a server. The root leads to the console, which
      // the browser hides from other origins.
      await fetch(new URL("/healthz", base), { mode: "no-cors", signal: AbortSignal.timeout(probeMs) });
    } catch {
      const mixed = location.protocol === "https:" && base.protocol === "http:"
        ? ", which a page over https may not call" : "";
      return `. It cannot be reached from this page${mixed}. Is the server running, is the address right, and do the ` +
        `page's Content-Security-Policy (connect-src) and the server ${allow} allow the call?`;
    }
    return `. A server answers there, and the browser withholds its answers from pages of ${location.origin} (CORS): ` +
      `the server must allow this origin ${allow}`;
  }
}
