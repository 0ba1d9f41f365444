// The console's calls. The console only talks to the server that serves the page.

import { Code, ConnectError, createClient as connectClient, type Interceptor } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-web";
import { type Client, createClient, LedgerError } from "@seqledger/client";
import { AdminService } from "@seqledger/gen/admin_pb";
import { IdempotencyService } from "@seqledger/gen/idempotency_pb";
import { LedgerService } from "@seqledger/gen/ledger_pb";

/** The server's own URL: the page is below it, in /console/. */
export const baseUrl = new URL("..", document.baseURI.split("#")[0]).href.replace(/\/$/, "");

// The key is kept for this tab, and never put in a URL.
const keyName = "seqledger key";
export const key = {
  get: (): string => sessionStorage.getItem(keyName) ?? "",
  set: (value: string): void => sessionStorage.setItem(keyName, value),
  forget: (): void => sessionStorage.removeItem(keyName),
};

const authorized: Interceptor = (next) => (request) => {
  if (key.get() !== "") request.header.set("Authorization", `Bearer ${key.get()}`);
  return next(request);
};

const transport = createConnectTransport({
  baseUrl, useBinaryFormat: true, interceptors: [authorized], defaultTimeoutMs: 30_000,
});

export const ledger = connectClient(LedgerService, transport);
export const admin = connectClient(AdminService, transport);
export const records = connectClient(IdempotencyService, transport);
export const client = createClient({ baseUrl, token: () => key.get(), cleartextToken: true, log: () => {} });

/** once makes calls of a client, which repeats them without end, until the first that fails. */
export async function once<T>(
  signal: AbortSignal, ask: (client: Client, options: { signal: AbortSignal }) => Promise<T>,
): Promise<T> {
  const failed = new AbortController();
  const failing: Interceptor = (next) => (request) => next(request).catch((e: unknown) => {
    failed.abort(e);
    throw e;
  });
  const interceptors = [authorized, failing];
  await using asking = createClient({
    baseUrl, transport: createConnectTransport({ baseUrl, useBinaryFormat: true, interceptors }), log: () => {},
  });
  return await ask(asking, { signal: AbortSignal.any([signal, failed.signal]) });
}

/** How long a page that shows the present waits for an answer before it says that there is none. */
export const pollMs = 5000;

/** fetchMetrics returns the server's metrics. */
export async function fetchMetrics(signal: AbortSignal): Promise<string> {
  const headers: HeadersInit = key.get() === "" ? {} : { Authorization: `Bearer ${key.get()}` };
  const answer = await fetch(`${baseUrl}/metrics`, { headers, signal: AbortSignal.any([signal, AbortSignal.timeout(pollMs)]) });
  if (!answer.ok) throw new ConnectError(`HTTP ${answer.status}`, codes[answer.status] ?? Code.Unavailable);
  return answer.text();
}

const codes: Record<number, Code> = { 401: Code.Unauthenticated, 403: Code.PermissionDenied };

/** Returns the code of a failed call, or undefined if the page itself has failed. */
function codeOf(error: unknown): Code | undefined {
  if (error instanceof LedgerError) return error.connectCode;
  if (error instanceof ConnectError) return error.code;
  if (error instanceof DOMException && error.name === "TimeoutError") return Code.DeadlineExceeded;
  return error instanceof TypeError && /fetch/i.test(error.message) ? Code.Unavailable : undefined;
}

/** needsKey reports whether the server requires a credential, or a different one. */
export const needsKey = (error: unknown): boolean => codeOf(error) === Code.Unauthenticated;

// What is said of an error that has no sentence of the server: one of the browser, or of a program before the server.
const sentences: Partial<Record<Code, string>> = {
  [Code.Unavailable]: "The server does not answer",
  [Code.Unknown]: "The server does not answer",
  [Code.DeadlineExceeded]: "The server does not answer in time",
  [Code.Unauthenticated]: "The server wants an API key, or another one",
  [Code.PermissionDenied]: "This credential may not do that",
  [Code.NotFound]: "There is no such thing",
};

/** messageOf returns what an error means, as a sentence: never nothing, and never a message in another form. */
export function messageOf(error: unknown): string {
  const text = (error instanceof ConnectError ? error.rawMessage : error instanceof Error ? error.message : "").trim();
  const code = codeOf(error);
  const said = code !== undefined && (text === "" || /^HTTP \d+$|^[[{<]|fetch|network|timed out|deadline/i.test(text));
  const sentence = said ? sentences[code] ?? "The server has failed" : text || "This page has failed";
  const status = said && /^HTTP \d+$/.test(text) ? ` (${text})` : "";
  return `${sentence[0]!.toUpperCase()}${sentence.slice(1)}${status}`.replace(/[.:]?$/, ".");
}
