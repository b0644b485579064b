/// <reference types="vitest/config" />
import react from "@vitejs/plugin-react";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { brotliCompressSync, constants, gzipSync } from "node:zlib";
import { defineConfig, type Plugin } from "vite";

const OUTPUT = "../gateway/static";
const COMPRESSIBLE = /\.(js|css|svg)$/;
const GATEWAY = process.env.HEARTH_URL ?? "http://127.0.0.1:8000";

/** Write `.gz` and `.br` files beside the assets, so that the gateway never compresses while it serves. */
function precompress(): Plugin {
  return {
    name: "precompress",
    apply: "build",
    closeBundle() {
      const folder = join(import.meta.dirname, OUTPUT, "assets");
      for (const name of readdirSync(folder)) {
        if (!COMPRESSIBLE.test(name)) continue;
        const content = readFileSync(join(folder, name));
        writeFileSync(join(folder, `${name}.gz`), gzipSync(content, { level: 9 }));
        const options = { params: { [constants.BROTLI_PARAM_QUALITY]: 11 } };
        writeFileSync(join(folder, `${name}.br`), brotliCompressSync(content, options));
      }
    },
  };
}

export default defineConfig({
  base: "/dashboard/",
  plugins: [react(), precompress()],
  // The gateway replaces this text with the nonce of each response.
  html: { cspNonce: "__CSP_NONCE__" },
  build: {
    outDir: OUTPUT,
    emptyOutDir: true,
    manifest: true,
    assetsInlineLimit: 0, // data: URLs are not allowed by the content security policy
    modulePreload: { polyfill: false },
    target: "es2022",
    chunkSizeWarningLimit: 1000,
    reportCompressedSize: false,
  },
  server: {
    proxy: Object.fromEntries(
      ["/client", "/admin", "/healthz", "/openapi.json"].map((path) => [path, { target: GATEWAY }]),
    ),
  },
  resolve: { alias: { "@": join(import.meta.dirname, "src") } },
  test: { environment: "node", include: ["src/**/*.test.ts"] },
});
