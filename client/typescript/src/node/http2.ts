// A Client for Node whose calls share one HTTP/2 connection. Node's fetch speaks HTTP/1.1, with one connection per call
// in flight.

import { createConnectTransport, Http2SessionManager } from "@connectrpc/connect-node";
import { Client, type ClientOptions } from "../client.js";
import type { WebSocketConstructor } from "../stream.js";

// A connection gives no sign when its peer has gone. After this idle time a ping checks it.
const pingAfterMs = 20_000;
const pingAnswerMs = 10_000;

/**
 * createHttp2Client returns a client whose calls, and batches of writes, share an HTTP/2 connection: over TLS with
 * https://, without it with http://. It connects on first use, and reconnects when the connection is lost. Many writes
 * go over a WebSocket, if Node has one.
 *
 * Every intermediary in front of the server must speak HTTP/2, too. It throws the same errors as createClient.
 */
export function createHttp2Client(options: Omit<ClientOptions, "transport">): Client {
  return new Http2Client(options);
}

class Http2Client extends Client {
  private readonly connection: Http2SessionManager;

  constructor(options: Omit<ClientOptions, "transport">) {
    const connection = new Http2SessionManager(options.baseUrl, {
      pingIntervalMs: pingAfterMs, pingTimeoutMs: pingAnswerMs,
    });
    // It sends a request once: it switches to another connection only before the request has a stream.
    const transport = createConnectTransport({
      baseUrl: options.baseUrl, httpVersion: "2", useBinaryFormat: true, sessionManager: connection,
    });
    const standard = globalThis.WebSocket as WebSocketConstructor | undefined;
    super({ ...options, transport, webSocket: options.webSocket ?? standard ?? false });
    this.connection = connection;
  }

  override async close(): Promise<void> {
    try {
      await super.close();
    } finally {
      this.connection.abort();
    }
  }
}
