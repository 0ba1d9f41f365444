// Writes over a WriteStream of a real server. What a Writer concludes from answers is tested in rules.test.ts.

import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";
import { append, type Client, createClient, memoryJournal, type Pending } from "../src/index.js";
import { bearerProtocol } from "../src/stream.js";
import { clientOf, Ledger, payloads, startLedger, temporary } from "./support.js";

const scope = { organization: "acme", vault: "main" };

/** counting returns a WebSocket that counts its instances. */
function counting(): { webSocket: typeof WebSocket; sockets: WebSocket[] } {
  const sockets: WebSocket[] = [];
  class Counted extends WebSocket {
    constructor(url: string, protocols: string[]) {
      super(url, protocols);
      sockets.push(this);
    }
  }
  return { webSocket: Counted as typeof WebSocket, sockets };
}

/** Writes until the client has a stream. It writes outside the scope of the tests. */
async function warm(client: Client): Promise<void> {
  const writer = await client.openWriter({ scope: { organization: "warm" }, clientId: "warm" });
  for (let n = 0; !client.sender.streams; n++) await writer.write([append("warm")]);
  await writer.close();
}

test("many writers share one stream, in the order of each", async (t) => {
  const { address } = await startLedger(t);
  const { webSocket, sockets } = counting();
  const client = clientOf(t, address, { webSocket });
  await warm(client);
  const all = await Promise.all(Array.from({ length: 20 }, async (_, i) => {
    const writer = await client.openWriter({ scope, clientId: `w${i}` });
    const pendings = Array.from({ length: 100 }, (_, n) => writer.submit([append(`w${i}-${n}`)]));
    return Promise.all(pendings.map((p) => p.settled));
  }));
  all.forEach((receipts) => receipts.forEach((r, n) => assert.equal(r.sequence, BigInt(n + 1))));
  assert.equal(sockets.length, 1);
  const found = payloads(address);
  assert.equal(found.length, 2000);
  assert.equal(new Set(found).size, 2000);
});

test("a server that is killed again and again commits each write once", async (t) => {
  let ledger = await Ledger.start(temporary(t));
  t.after(() => ledger.kill());
  const { webSocket, sockets } = counting();
  const client = clientOf(t, ledger.address, { webSocket, streamCalls: 1 });
  const writer = await client.openWriter({ scope, clientId: "w", journal: await memoryJournal() });
  const pendings: Pending[] = [];
  for (let round = 0; round < 5; round++) {
    await warm(client);
    for (let n = 0; n < 200; n++) pendings.push(writer.submit([append(`${round}-${n}`)]));
    await pendings.at(-100)!.settled;
    ledger = await ledger.restart();
    client.wake();
  }
  for (const [i, p] of pendings.entries()) assert.equal((await p.settled).sequence, BigInt(i + 1));
  assert.equal(sockets.length >= 5, true); // the last server may have been killed after it had answered everything
  const wanted = Array.from({ length: 1000 }, (_, i) => `${Math.floor(i / 200)}-${i % 200}`);
  assert.deepEqual(payloads(ledger.address), wanted);
});

test("without a WebSocket, or with one that is refused, calls carry the writes", async (t) => {
  const { address } = await startLedger(t);
  class Refused {
    onclose?: () => void;
    constructor() {
      setImmediate(() => this.onclose?.());
    }
    close(): void {}
  }
  for (const webSocket of [false, Refused as unknown as typeof WebSocket] as const) {
    const client = clientOf(t, address, { webSocket, streamCalls: 1 });
    const writer = await client.openWriter({ scope, clientId: "w" });
    for (let n = 0; n < 20; n++) await writer.write([append("x")]);
    assert.equal(client.sender.streams, false);
  }
});

test("an open stream does not keep a closed client's connection", async (t: TestContext) => {
  const { address } = await startLedger(t);
  const { webSocket, sockets } = counting();
  const client = createClient({ baseUrl: `http://${address}`, webSocket });
  await warm(client);
  const closed = new Promise((resolve) => sockets[0]!.addEventListener("close", resolve));
  await client.close();
  await closed;
});

test("a token becomes a sub-protocol", () => {
  assert.equal(bearerProtocol("a key"), "bearer.YSBrZXk");
  assert.equal(bearerProtocol("~~~???"), "bearer.fn5-Pz8_");
});
