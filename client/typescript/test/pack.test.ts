// The package as npm publishes it: it installs into an empty project, and the programs in its README compile and run.

import assert from "node:assert/strict";
import { execFileSync, spawnSync } from "node:child_process";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { before, test } from "node:test";
import { clientOf, remove, startLedger, temporary } from "./support.js";

const root = join(import.meta.dirname, "..", "..");
const readme = readFileSync(join(root, "README.md"), "utf8");
const scope = { organization: "acme", vault: "main" };

/** The README's code blocks that are complete programs, in order. */
const programs = [...readme.matchAll(/^```ts\n(.*?)^```$/gms)]
  .map((match) => match[1]!)
  .filter((program) => program.startsWith("import "));

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

before(() => {
  project = temporary({ after: (f) => void process.once("exit", f) });
  const npm = (...args: string[]): string => execFileSync("npm", args, { cwd: project, encoding: "utf8" });
  const [packed] = JSON.parse(npm("pack", root, "--json", "--ignore-scripts")) as { filename: string }[];
  writeFileSync(join(project, "package.json"), '{"private": true, "type": "module"}');
  // The versions that the README names.
  const peers = /^npm install @seqledger\/client (.*)$/m.exec(readme)![1]!.split(" ");
  npm(
    "install", "--prefer-offline", "--ignore-scripts", "--no-audit", "--no-fund",
    `./${packed!.filename}`, ...peers, peers[0]!.replace("connect@", "connect-node@"),
  );
});

/** Compiles the programs for a ledger, with the strictest settings, and returns the name of each. */
function compile(address: string): string[] {
  mkdirSync(join(project, "src"), { recursive: true });
  writeFileSync(join(project, "src", "books.ts"), books);
  writeFileSync(join(project, "src", "token.d.ts"), "declare const token: string;\n");
  programs.forEach((program, i) => {
    const local = program.replaceAll("https://ledger.example", `http://${address}`);
    writeFileSync(join(project, "src", `program${i}.ts`), local);
  });
  writeFileSync(join(project, "tsconfig.json"), JSON.stringify({
    compilerOptions: {
      target: "ES2022", module: "NodeNext", lib: ["ES2024", "DOM", "DOM.AsyncIterable", "ESNext.Disposable"],
      strict: true, exactOptionalPropertyTypes: true, noUncheckedIndexedAccess: true, skipLibCheck: false,
      types: ["node"], typeRoots: [join(root, "node_modules", "@types")], rootDir: "src", outDir: "out",
    },
    include: ["src"],
  }));
  const tsc = join(root, "node_modules", "typescript", "bin", "tsc");
  const { status, stdout } = spawnSync(process.execPath, [tsc], { cwd: project, encoding: "utf8" });
  assert.equal(status, 0, stdout);
  return programs.map((_, i) => join(project, "out", `program${i}.js`));
}

/** Runs a program, which may be told to crash. */
function start(program: string, crash = ""): NodeJS.Signals | null {
  const token = 'data:text/javascript,globalThis.token = "token"';
  const { signal, status, stderr } = spawnSync(process.execPath, ["--import", token, program], {
    cwd: project, encoding: "utf8", env: { ...process.env, CRASH: crash },
  });
  assert.ok(signal !== null || status === 0, stderr);
  return signal;
}

test("the packed package has what a program needs, and nothing else", () => {
  const [packed] = JSON.parse(execFileSync("npm", ["pack", root, "--dry-run", "--json"], {
    cwd: project, encoding: "utf8",
  })) as { files: { path: string }[] }[];
  const paths = packed!.files.map((f) => f.path);
  for (const wanted of ["LICENSE", "README.md", "package.json", "dist/src/index.js", "dist/src/index.d.ts"]) {
    assert.ok(paths.includes(wanted), wanted);
  }
  assert.deepEqual(paths.filter((p) => !/^(LICENSE|README\.md|package\.json|src\/.*|dist\/src\/.*)$/.test(p)), []);
  const licenses = [root, join(root, "..", "..")].map((dir) => readFileSync(join(dir, "LICENSE"), "utf8"));
  assert.equal(licenses[0], licenses[1]);
});

test("the README's programs compile against the installed package and run", async (t) => {
  const { address } = await startLedger(t);
  const [first, crashing] = compile(address);
  assert.equal(programs.length, 3);
  start(first!);
  const client = clientOf(t, address);
  assert.equal(new TextDecoder().decode((await client.getEntity(scope, "balance/42")).value), "100");

  // Nothing is paid twice, whatever is lost: what the program knew when it crashed, the books, and then the journal.
  const paid = async (): Promise<bigint> => (await client.getEntity(scope, "paid/order-4711")).version;
  assert.equal(start(crashing!, "before"), "SIGKILL");
  const version = await paid();
  assert.equal(start(crashing!, "after"), "SIGKILL", "it is noted by the next run");
  start(crashing!);
  assert.match(readFileSync(join(project, "books"), "utf8"), /^(order-4711 paid \S+\n){2}$/);
  remove(join(project, "books"));
  assert.throws(() => start(crashing!), /order-4711/, "the journal has the tag");
  remove(join(project, "till.journal"));
  start(crashing!);
  assert.match(readFileSync(join(project, "books"), "utf8"), /^order-4711 refused: .*\n$/);
  assert.equal(await paid(), version);
});
