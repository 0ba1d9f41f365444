// The screenshots of the console's pages, which the tests take if SCREENSHOTS names a directory. As a program it checks
// that they exist:
//
//     node dist/test/browser/screenshots.js DIRECTORY

import { existsSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

/** The pages, by the names of their screenshots. */
export const pages = [
  "overview", "streams", "transaction", "blocks", "entities", "follow", "reservations", "verify", "try",
] as const;
export const widths = { telephone: 375, desk: 1280 } as const;
export const schemes = ["light", "dark"] as const;

/** shapes are the variants in which each page is checked. */
export const shapes = Object.entries(widths).flatMap(([name, width]) =>
  schemes.map((scheme) => ({ suffix: `${name}-${scheme}`, width, scheme })),
);

if (import.meta.url === pathToFileURL(process.argv[1] ?? "").href) {
  const directory = process.argv[2]!;
  const wanted = pages.flatMap((page) => shapes.map(({ suffix }) => `${page}-${suffix}.png`));
  const missing = wanted.filter((name) => !existsSync(join(directory, name)));
  if (missing.length > 0) {
    console.error(`${directory} has no picture ${missing.join(", ")}`);
    process.exit(1);
  }
  console.log(`${wanted.length} pictures of the console's pages are in ${directory}`);
}
