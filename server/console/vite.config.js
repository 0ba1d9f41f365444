// Builds the console into dist, which is committed: the same sources and packages give the same
// bytes, so names have no hashes.
import { fileURLToPath } from "node:url";
import { defineConfig } from "vite";

const client = fileURLToPath(new URL("../../client/typescript/src", import.meta.url));

export default defineConfig({
  base: "./",
  resolve: {
    alias: [
      { find: /^@seqledger\/client$/, replacement: `${client}/index.ts` },
      { find: /^@seqledger\/gen\//, replacement: `${client}/gen/seqledger/v1/` },
    ],
    // The client's sources lie elsewhere, and need the same copies.
    dedupe: ["@bufbuild/protobuf", "@connectrpc/connect", "@connectrpc/connect-web"],
  },
  build: {
    target: "es2022",
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
    reportCompressedSize: false,
    rollupOptions: {
      output: {
        entryFileNames: "console.js",
        assetFileNames: "console[extname]",
        codeSplitting: false,
      },
    },
  },
});
