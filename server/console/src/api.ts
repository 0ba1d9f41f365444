// The console's calls. The console only talks to the server that serves the page.

import { Code, ConnectError, createClient as connectClient, type Interceptor } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-web";
import { createClient } from "@seqledger/client";
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
export const client = createClient({ baseUrl, token: () => key.get(), cleartextToken: true });

/** fetchMetrics returns the server's metrics. */
export async function fetchMetrics(signal: AbortSignal): Promise<string> {
  const headers: HeadersInit = key.get() === "" ? {} : { Authorization: `Bearer ${key.get()}` };
  const answer = await fetch(`${baseUrl}/metrics`, { headers, signal });
  if (!answer.ok) {
    const code = answer.status === 401 ? Code.Unauthenticated : Code.PermissionDenied;
    throw new ConnectError((await answer.text()).trim(), code);
  }
  return answer.text();
}

/** needsKey reports whether the server requires a credential, or a different one. */
export function needsKey(error: unknown): boolean {
  const code = (error as { connectCode?: Code; code?: Code }).connectCode ?? (error as { code?: Code }).code;
  return code === Code.Unauthenticated;
}

export const messageOf = (error: unknown): string =>
  error instanceof ConnectError ? error.rawMessage : error instanceof Error ? error.message : String(error);
