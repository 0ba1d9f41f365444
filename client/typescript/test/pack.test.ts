// The package as npm publishes it: it installs into an empty project, and the programs in its README compile and run.

import assert from "node:assert/strict";
import { execFileSync, spawnSync } from "node:child_process";
import { cpSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { before, test } from "node:test";
import { clientOf, payloads, remove, startLedger, temporary } from "./support.js";

const root = join(import.meta.dirname, "..", "..");
const readme = readFileSync(join(root, "README.md"), "utf8");
const scope = { organization: "acme", vault: "main" };

/** The code blocks of a document that are complete programs, in order. */
const programsOf = (markdown: string): string[] => [...markdown.matchAll(/^```ts\n(.*?)^```$/gms)]
  .map((match) => match[1]!)
  .filter((program) => program.startsWith("import "));

const programs = programsOf(readme);
const [frontPage] = programsOf(readFileSync(join(root, "..", "..", "README.md"), "utf8"));

// The books of the program that may crash. They are a file, and end the program at the point that CRASH names.
const books = `
import { appendFileSync, existsSync, readFileSync } from "node:fs";

const lines = (): string[] => existsSync("books") ? readFileSync("books", "utf8").split("\\n") : [];
export const books = {
  has: async (tag: string): Promise<boolean> => lines().some((line) => line.startsWith(tag + " ")),
  note: async (tag: string, outcome: string): Promise<void> => {
    if (process.env["CRASH"] === "before") process.kill(process.pid, "SIGKILL");
    appendFileSync("books", \`\${tag} \${outcome}\\n\`);
    if (process.env["CRASH"] === "after") process.kill(process.pid, "SIGKILL");
  },
};
`;

let project: string;
let files: string[];

before(() => {
  project = temporary({ after: (f) => void process.once("exit", f) });
  const npm = (cwd: string, ...args: string[]): string => execFileSync("npm", args, { cwd, encoding: "utf8" });
  // A checkout in which nothing is built.
  const checkout = join(project, "checkout");
  const tracked = execFileSync("git", ["ls-files", "-co", "--exclude-standard"], { cwd: root, encoding: "utf8" });
  for (const path of tracked.trim().split("\n")) {
    mkdirSync(dirname(join(checkout, path)), { recursive: true });
    cpSync(join(root, path), join(checkout, path));
  }
  symlinkSync(join(root, "node_modules"), join(checkout, "node_modules"));
  const [packed] = JSON.parse(npm(checkout, "pack", "--json")) as { filename: string; files: { path: string }[] }[];
  files = packed!.files.map((f) => f.path);
  writeFileSync(join(project, "package.json"), '{"private": true, "type": "module"}');
  npm(
    project, "install", "--prefer-offline", "--ignore-scripts", "--no-audit", "--no-fund",
    `./checkout/${packed!.filename}`,
  );
});

/** Compiles programs of a stranger, with the given settings, and returns the name of each. */
function compile(address: string, sources: string[], settings: object): string[] {
  const src = join(project, "src");
  remove(src);
  mkdirSync(src);
  writeFileSync(join(src, "books.ts"), books);
  writeFileSync(join(src, "token.d.ts"), "declare const token: string;\n");
  sources.forEach((source, i) => {
    const local = source.replaceAll("https://ledger.example", `http://${address}`);
    writeFileSync(join(src, `program${i}.ts`), local.replaceAll("http://127.0.0.1:7450", `http://${address}`));
  });
  writeFileSync(join(project, "tsconfig.json"), JSON.stringify({
    compilerOptions: {
      target: "ES2022", module: "NodeNext", strict: true, types: ["node"],
      typeRoots: [join(root, "node_modules", "@types")], rootDir: "src", outDir: "out", ...settings,
    },
    include: ["src"],
  }));
  const tsc = join(root, "node_modules", "typescript", "bin", "tsc");
  const { status, stdout } = spawnSync(process.execPath, [tsc], { cwd: project, encoding: "utf8" });
  assert.equal(status, 0, stdout);
  return sources.map((_, i) => join(project, "out", `program${i}.js`));
}

/** Runs a program, which may be told to crash. */
function start(program: string, crash = ""): { signal: NodeJS.Signals | null; stdout: string } {
  const token = 'data:text/javascript,globalThis.token = "token"';
  const { signal, status, stdout, stderr } = spawnSync(process.execPath, ["--import", token, program], {
    cwd: project, encoding: "utf8", env: { ...process.env, CRASH: crash }, timeout: 60_000,
  });
  assert.ok(signal === "SIGKILL" || status === 0, `${signal} ${stderr}`);
  return { signal, stdout };
}

test("the package of a checkout in which nothing is built has what a program needs, and nothing else", () => {
  for (const wanted of ["LICENSE", "README.md", "package.json", "dist/src/index.js", "dist/src/index.d.ts"]) {
    assert.ok(files.includes(wanted), wanted);
  }
  assert.deepEqual(files.filter((p) => !/^(LICENSE|README\.md|package\.json|src\/.*|dist\/src\/.*)$/.test(p)), []);
  const licenses = [root, join(root, "..", "..")].map((dir) => readFileSync(join(dir, "LICENSE"), "utf8"));
  assert.equal(licenses[0], licenses[1]);
});

// What tsc --init and common templates choose. With skipLibCheck false the types of Connect need the DOM's.
const everywhere = `
import { append, createClient, type Journal, type Pending, type Writer } from "@seqledger/client";
import { createHttp2Client } from "@seqledger/client/http2";
import { fileJournal } from "@seqledger/client/node";
export const uses = { append, createClient, createHttp2Client, fileJournal };
export type Uses = [Journal, Pending, Writer];
`;
const settings: Record<string, object> = {
  "the defaults": { skipLibCheck: false },
  "an older target": { target: "ES2020", skipLibCheck: false },
  "a bundler": { module: "ESNext", moduleResolution: "Bundler", lib: ["ES2022", "DOM"], skipLibCheck: false },
  "no DOM": { lib: ["ES2022"], skipLibCheck: true },
  "the strictest": {
    skipLibCheck: false, exactOptionalPropertyTypes: true, noUncheckedIndexedAccess: true, isolatedModules: true,
  },
};

test("a stranger's program compiles with ordinary settings", () => {
  for (const [name, chosen] of Object.entries(settings)) {
    try {
      compile("ledger.example", [everywhere], { noEmit: true, ...chosen });
    } catch (e) {
      throw new Error(`${name}: ${String(e)}`);
    }
  }
});

test("the example of the front page sells each time it runs, and settles what a crash left behind", async (t) => {
  const { address } = await startLedger(t);
  compile(address, [frontPage!], { noEmit: true, skipLibCheck: false });
  const journal = /^import (.*), indexedDbJournal \} from (.*)$/m;
  assert.match(frontPage!, journal);
  const inNode = frontPage!
    .replace(journal, 'import $1 } from $2\nimport { fileJournal } from "@seqledger/client/node";')
    .replace('indexedDbJournal("till")', 'fileJournal("front.journal")');
  const crashing = inNode.replace("await sale.acknowledge()", "process.kill(process.pid, 'SIGKILL')");
  assert.notEqual(crashing, inNode);
  const [program, crash] = compile(address, [inNode, crashing], {});
  assert.match(start(program!).stdout, /^\S+ \S+\n$/);
  assert.match(start(program!).stdout, /^\S+ \S+\n$/, "what was acknowledged is forgotten");
  assert.equal(start(crash!).signal, "SIGKILL");
  assert.match(start(program!).stdout, /^(\S+ \S+\n){2}$/);
  assert.match(start(program!).stdout, /^\S+ \S+\n$/);
  assert.deepEqual(payloads(address), Array(5).fill("sold one"));
});

test("the README's programs compile against the installed package and run", async (t) => {
  const { address } = await startLedger(t);
  const [first, crashing] = compile(address, programs, { skipLibCheck: false });
  assert.equal(programs.length, 3);
  start(first!);
  const client = clientOf(t, address);
  assert.equal(new TextDecoder().decode((await client.getEntity(scope, "balance/42")).value), "100");

  // Nothing is paid twice, whatever is lost: what the program knew when it crashed, the books, and then the journal.
  const paid = async (): Promise<bigint> => (await client.getEntity(scope, "paid/order-4711")).version;
  assert.equal(start(crashing!, "before").signal, "SIGKILL");
  const version = await paid();
  assert.equal(start(crashing!, "after").signal, "SIGKILL", "it is noted by the next run");
  start(crashing!);
  assert.match(readFileSync(join(project, "books"), "utf8"), /^(order-4711 paid \S+\n){2}$/);
  remove(join(project, "books"));
  assert.throws(() => start(crashing!), /order-4711/, "the journal has the tag");
  remove(join(project, "till.journal"));
  start(crashing!);
  assert.match(readFileSync(join(project, "books"), "utf8"), /^order-4711 refused: .*\n$/);
  assert.equal(await paid(), version);
});
