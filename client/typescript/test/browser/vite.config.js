// Bundles the page of the browser tests from what tsc has made.
import { fileURLToPath } from "node:url";
import { defineConfig } from "vite";

const dist = fileURLToPath(new URL("../../dist", import.meta.url));

export default defineConfig({
  logLevel: "warn",
  build: {
    target: "es2022",
    outDir: `${dist}/page`,
    emptyOutDir: true,
    lib: {
      entry: { page: `${dist}/test/browser/page.js`, serviceworker: `${dist}/examples/serviceworker.js` },
      formats: ["es"],
      fileName: (_, name) => `${name}.js`,
    },
  },
});
