// The client over HTTP/2. seqledger conformance tests it against the requirements, with the faults of its proxy.

import assert from "node:assert/strict";
import { connect, createServer, type AddressInfo, type Socket } from "node:net";
import { test, type TestContext } from "node:test";
import { append, isNotFound, type Pending } from "../src/index.js";
import { createHttp2Client } from "../src/node/http2.js";
import { payloads, startLedger } from "./support.js";

const scope = { organization: "acme", vault: "main" };

/** Relay forwards connections, and records how each began. */
class Relay {
  readonly beginnings: string[] = [];
  readonly open = new Set<Socket>();
  address = "";

  static async start(t: TestContext, target: string): Promise<Relay> {
    const relay = new Relay();
    const server = createServer((near) => relay.pass(near, target));
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    t.after(() => {
      relay.cut();
      server.close();
    });
    relay.address = `127.0.0.1:${(server.address() as AddressInfo).port}`;
    return relay;
  }

  private pass(near: Socket, target: string): void {
    const [host, port] = target.split(":") as [string, string];
    const far = connect(Number(port), host);
    this.open.add(near);
    near.once("data", (first: Buffer) => this.beginnings.push(first.toString("latin1", 0, 14)));
    near.on("error", () => {}).on("close", () => {
      this.open.delete(near);
      far.destroy();
    });
    far.on("error", () => {}).on("close", () => near.destroy());
    near.pipe(far).pipe(near);
  }

  /** Breaks all connections, and returns their number. */
  cut(): number {
    const broken = [...this.open];
    for (const socket of broken) socket.resetAndDestroy();
    return broken.length;
  }
}

test("calls and writes share one connection, with HTTP/2", async (t) => {
  const { address } = await startLedger(t);
  const relay = await Relay.start(t, address);
  const client = createHttp2Client({ baseUrl: `http://${relay.address}`, webSocket: false });
  t.after(() => client.close());
  const writers = await Promise.all(
    Array.from({ length: 8 }, (_, i) => client.openWriter({ scope, clientId: `w${i}` })),
  );
  const pendings = writers.flatMap((w, i) => Array.from({ length: 20 }, (_, n) => w.submit([append(`${i}-${n}`)])));
  const [reading, ...receipts] = await Promise.all([client.status(), ...pendings.map((p) => p.settled)]);
  assert.match(reading.ledgerId, /^[0-9a-f]{16}$/);
  receipts.forEach((r, i) => assert.equal(r.sequence, BigInt(i % 20) + 1n));
  assert.equal(new Set(payloads(address)).size, 160);
  await assert.rejects(client.getEntity(scope, "nothing"), isNotFound);
  assert.deepEqual(relay.beginnings, ["PRI * HTTP/2.0"]);
});

test("writes go on over another connection when one is cut, each once", async (t) => {
  const { address } = await startLedger(t);
  const relay = await Relay.start(t, address);
  const client = createHttp2Client({ baseUrl: `http://${relay.address}`, webSocket: false });
  t.after(() => client.close());
  const writer = await client.openWriter({ scope, clientId: "w" });
  const pendings: Pending[] = [];
  for (let round = 0; round < 10; round++) {
    for (let n = 0; n < 50; n++) pendings.push(writer.submit([append(`${round}-${n}`)]));
    await pendings.at(-40)!.accepted;
    assert.equal(relay.cut(), 1);
    client.wake();
    await pendings.at(-1)!.settled;
  }
  assert.deepEqual(payloads(address), pendings.map((_, i) => `${Math.floor(i / 50)}-${i % 50}`));
  assert.ok(relay.beginnings.length > 10 && new Set(relay.beginnings).size === 1);
});

test("blocks are followed over HTTP/2, and the end of the client ends its connection", async (t) => {
  const { address } = await startLedger(t);
  const relay = await Relay.start(t, address);
  const client = createHttp2Client({ baseUrl: `http://${relay.address}`, webSocket: false });
  const writer = await client.openWriter({ scope, clientId: "w" });
  await writer.write([append("first")]);
  const heights: bigint[] = [];
  const following = (async () => {
    for await (const block of client.watch(scope)) {
      heights.push(block.header.height);
      if (heights.length === 1) await writer.write([append("second")]);
      if (heights.length === 2) break;
    }
  })();
  await following;
  assert.deepEqual(heights, [1n, 2n]);
  const [socket] = [...relay.open];
  const ended = new Promise((resolve) => socket!.once("close", resolve));
  await client.close();
  await ended;
  assert.equal(relay.open.size, 0);
});

test("many writes still go over a WebSocket, where there is one", async (t) => {
  const { address } = await startLedger(t);
  const relay = await Relay.start(t, address);
  const client = createHttp2Client({ baseUrl: `http://${relay.address}`, streamCalls: 1 });
  t.after(() => client.close());
  const writer = await client.openWriter({ scope, clientId: "w" });
  for (let n = 0; !client.sender.streams; n++) await writer.write([append(`warm ${n}`)]);
  await writer.write([append("streamed")]);
  assert.deepEqual([...relay.beginnings].sort(), ["GET /seqledger", "PRI * HTTP/2.0"]);
});
