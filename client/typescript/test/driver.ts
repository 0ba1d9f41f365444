// A program for seqledger conformance in Node, with a file journal:
//
//     seqledger conformance --client 'node dist/test/driver.js'
//     seqledger conformance --client 'node --experimental-websocket dist/test/driver.js --stream'
//     seqledger conformance --client 'node dist/test/driver.js --http2'

import { createInterface } from "node:readline";
import { createHttp2Client } from "../src/node/http2.js";
import { fileJournal } from "../src/node/index.js";
import { type Command, drive } from "./drive.js";

// With --stream the second call already finds, or opens, a WriteStream.
const streamed = process.argv.includes("--stream");
const obey = drive({
  openJournal: (c) => fileJournal(c.journal, c.journalBytes === undefined ? {} : { maxBytes: c.journalBytes }),
  options: streamed ? { streamCalls: 1 } : { webSocket: false },
  ...(process.argv.includes("--http2") ? { connect: createHttp2Client } : {}),
  say: (event) => process.stdout.write(`${JSON.stringify(event)}\n`),
  exit: () => process.exit(0),
});

for await (const line of createInterface({ input: process.stdin })) await obey(JSON.parse(line) as Command);
process.exit(0);
