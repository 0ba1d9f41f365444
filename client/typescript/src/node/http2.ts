// A Client whose calls go over one HTTP/2 connection, for Node. The fetch of Node speaks HTTP/1.1, with
// a connection for each call that is under way.

import { createConnectTransport, Http2SessionManager } from "@connectrpc/connect-node";
import { Client, type ClientOptions } from "../client.js";
import type { WebSocketConstructor } from "../stream.js";

// A connection whose other end is gone says nothing. One that was quiet for so long is asked.
const pingAfterMs = 20_000;
const pingAnswerMs = 10_000;

/**
 * createHttp2Client returns a client whose calls, and its batches of writes, share a connection with
 * HTTP/2: over TLS with https://, without it with http://. It connects when it is used, and again when
 * the connection is lost. Many writes go over a WebSocket, where Node has one.
 *
 * Whatever stands before the server must speak HTTP/2, too. It throws as createClient does.
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
    // It sends a request once: it takes another connection only while there is no stream for the request.
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
