// Bundles the pages of the browser tests, and the examples, from the output of tsc.
import { fileURLToPath } from "node:url";
import { defineConfig } from "vite";

const dist = fileURLToPath(new URL("../../dist", import.meta.url));

export default defineConfig({
  logLevel: "warn",
  // Strict mode, in which the example is tested, exists only in React's development version.
  define: { "process.env.NODE_ENV": '"development"' },
  build: {
    target: "es2022",
    outDir: `${dist}/page`,
    emptyOutDir: true,
    lib: {
      entry: {
        page: `${dist}/test/browser/page.js`,
        ...Object.fromEntries(["react", "serviceworker", "till"].map((name) => [name, `${dist}/examples/${name}.js`])),
      },
      formats: ["es"],
      fileName: (_, name) => `${name}.js`,
    },
  },
});
