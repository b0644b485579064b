// Runs one Worker in workerd with its AI binding connected to Hearth, and with local KV, D1 and R2 stores. Started by
// `hearth worker dev`.
//
// Reads its configuration as one JSON object from standard input. Writes one JSON object per line to standard output when
// the Worker is ready, has changed, or fails to build. The script is bundled, so it can import packages and be TypeScript,
// and is bundled again whenever one of its files changes. workerd calls the gateway directly.

import { text } from "node:stream/consumers";
import * as esbuild from "esbuild";
import { Log, LogLevel, Miniflare } from "miniflare";

const config = JSON.parse(await text(process.stdin));
const emit = (event) => process.stdout.write(JSON.stringify(event) + "\n");

const AI_FACTORY = `
import { Ai } from "cloudflare-internal:ai-api";
export default (env) => new Ai(env.FETCHER);
`;

function gateway() {
  const url = new URL(config.gateway.url);
  const injectRequestHeaders = Object.entries(config.gateway.headers).map(([name, value]) => ({ name, value }));
  const port = url.port || (url.protocol === "https:" ? 443 : 80);
  const address = `${url.hostname}:${port}`;
  if (url.protocol === "http:") return { external: { address, http: { injectRequestHeaders } } };
  const tlsOptions = { trustBrowserCas: true };
  return { external: { address, https: { options: { injectRequestHeaders }, tlsOptions, certificateHost: url.hostname } } };
}

function options(script) {
  return {
    host: config.host,
    port: config.port,
    defaultPersistRoot: config.state,
    log: new Log(LogLevel.ERROR),
    handleRuntimeStdio: (stdout, stderr) => {
      stdout.pipe(process.stderr, { end: false });
      stderr.pipe(process.stderr, { end: false });
    },
    workers: [
      {
        name: config.name,
        modules: [{ type: "ESModule", path: "worker.mjs", contents: script }],
        compatibilityDate: config.compatibility_date,
        compatibilityFlags: config.compatibility_flags,
        bindings: config.vars,
        kvNamespaces: config.kv,
        d1Databases: config.d1,
        r2Buckets: config.r2,
        wrappedBindings: Object.fromEntries(config.ai.map((name) => [name, { scriptName: "hearth:ai" }])),
      },
      {
        name: "hearth:ai",
        modules: [{ type: "ESModule", path: "ai.mjs", contents: AI_FACTORY }],
        serviceBindings: { FETCHER: gateway() },
      },
    ],
  };
}

let worker;
const runAfterBuild = {
  name: "hearth",
  setup(build) {
    build.onEnd(async (result) => {
      if (result.errors.length > 0) {
        emit({ event: "broken", message: result.errors.map(formatError).join("; ") });
        return;
      }
      try {
        const script = result.outputFiles[0].text;
        if (worker === undefined) worker = new Miniflare(options(script));
        else await worker.setOptions(options(script));
        const url = await worker.ready;
        emit({ event: "ready", url: url.origin });
      } catch (error) {
        emit({ event: "broken", message: String(error.message ?? error) });
      }
    });
  },
};

function formatError(error) {
  const location = error.location ? `${error.location.file}:${error.location.line}: ` : "";
  return location + error.text;
}

const bundler = await esbuild.context({
  entryPoints: [config.script],
  bundle: true,
  write: false,
  format: "esm",
  target: "es2022",
  conditions: ["workerd", "worker", "browser"],
  external: ["cloudflare:*", "node:*"],
  loader: { ".html": "text", ".txt": "text", ".sql": "text" },
  sourcemap: "inline",
  logLevel: "silent",
  plugins: [runAfterBuild],
});

async function stop() {
  await bundler.dispose();
  await worker?.dispose();
  process.exit(0);
}
process.once("SIGINT", stop);
process.once("SIGTERM", stop);

await bundler.watch();
