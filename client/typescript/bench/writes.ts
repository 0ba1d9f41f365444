// Measures a Writer per stream, with one write of 128 bytes outstanding on each, against a server.
//
//     node --experimental-websocket dist/bench/writes.js http://127.0.0.1:7450 256 5
//
// The arguments are the server, the streams, the seconds, and calls, to use no WebSocket.

import { append, createClient } from "../src/index.js";

const [baseUrl = "http://127.0.0.1:7450", streams = "256", seconds = "5", calls = ""] = process.argv.slice(2);
const payload = new Uint8Array(128).fill(120);
const run = Date.now();
await using client = createClient({ baseUrl, ...(calls === "calls" ? { webSocket: false } : {}) });
const scope = { organization: "bench", vault: "node" };
const writers = await Promise.all(
  Array.from({ length: Number(streams) }, (_, i) => client.openWriter({ scope, clientId: `node-${run}-${i}` })),
);

/** Writes until a time, and returns how long each write took, in milliseconds. */
async function load(until: number): Promise<number[]> {
  const took: number[] = [];
  await Promise.all(writers.map(async (w) => {
    for (let began = performance.now(); began < until; ) {
      await w.write([append(payload)]);
      const now = performance.now();
      took.push(now - began);
      began = now;
    }
  }));
  return took;
}

await load(performance.now() + 2000); // until the code is compiled and the stream open
const cpu = process.cpuUsage();
const began = performance.now();
const took = (await load(began + Number(seconds) * 1000)).sort((a, b) => a - b);
const elapsed = (performance.now() - began) / 1000;
const { user, system } = process.cpuUsage(cpu);
const at = (q: number): string => took[Math.min(took.length - 1, Math.floor(q * took.length))]!.toFixed(2);
const cost = ((user + system) / took.length).toFixed(1);
console.log(
  `${streams} streams${calls === "calls" ? ", in calls" : ""}: ${Math.round(took.length / elapsed)} writes/s, ` +
    `p50 ${at(0.5)} ms, p99 ${at(0.99)} ms, ${cost} µs of processor time a write`,
);
