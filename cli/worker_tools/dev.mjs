// Runs one Worker in workerd, with AI bound to a Hearth and KV, D1 and R2 in local stores; started by `hearth worker dev`.
//
// Reads what to do as one JSON object from standard input, and tells on standard output, a JSON object a line, when the
// Worker is ready, changed or broken. The script is bundled, so that it may import packages and be TypeScript, and
// bundled again whenever a file of it changes. AI goes from workerd to the gateway with no process between them.

import { text } from "node:stream/consumers";
import * as esbuild from "esbuild";
import { Log, LogLevel, Miniflare } from "miniflare";

const plan = JSON.parse(await text(process.stdin));
const say = (event) => process.stdout.write(JSON.stringify(event) + "\n");

const AI_FACTORY = `
import { Ai } from "cloudflare-internal:ai-api";
export default (env) => new Ai(env.FETCHER);
`;

function gateway() {
  const url = new URL(plan.gateway.url);
  const injectRequestHeaders = Object.entries(plan.gateway.headers).map(([name, value]) => ({ name, value }));
  const port = url.port || (url.protocol === "https:" ? 443 : 80);
  const address = `${url.hostname}:${port}`;
  if (url.protocol === "http:") return { external: { address, http: { injectRequestHeaders } } };
  const tlsOptions = { trustBrowserCas: true };
  return { external: { address, https: { options: { injectRequestHeaders }, tlsOptions, certificateHost: url.hostname } } };
}

function options(script) {
  return {
    host: plan.host,
    port: plan.port,
    defaultPersistRoot: plan.state,
    log: new Log(LogLevel.ERROR),
    handleRuntimeStdio: (stdout, stderr) => {
      stdout.pipe(process.stderr, { end: false });
      stderr.pipe(process.stderr, { end: false });
    },
    workers: [
      {
        name: plan.name,
        modules: [{ type: "ESModule", path: "worker.mjs", contents: script }],
        compatibilityDate: plan.compatibility_date,
        compatibilityFlags: plan.compatibility_flags,
        bindings: plan.vars,
        kvNamespaces: plan.kv,
        d1Databases: plan.d1,
        r2Buckets: plan.r2,
        wrappedBindings: Object.fromEntries(plan.ai.map((name) => [name, { scriptName: "hearth:ai" }])),
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
const keepRunning = {
  name: "hearth",
  setup(build) {
    build.onEnd(async (result) => {
      if (result.errors.length > 0) {
        say({ event: "broken", message: result.errors.map(described).join("; ") });
        return;
      }
      try {
        const script = result.outputFiles[0].text;
        if (worker === undefined) worker = new Miniflare(options(script));
        else await worker.setOptions(options(script));
        const url = await worker.ready;
        say({ event: "ready", url: url.origin });
      } catch (error) {
        say({ event: "broken", message: String(error.message ?? error) });
      }
    });
  },
};

function described(error) {
  const place = error.location ? `${error.location.file}:${error.location.line}: ` : "";
  return place + error.text;
}

const bundler = await esbuild.context({
  entryPoints: [plan.script],
  bundle: true,
  write: false,
  format: "esm",
  target: "es2022",
  conditions: ["workerd", "worker", "browser"],
  external: ["cloudflare:*", "node:*"],
  loader: { ".html": "text", ".txt": "text", ".sql": "text" },
  sourcemap: "inline",
  logLevel: "silent",
  plugins: [keepRunning],
});

async function stop() {
  await bundler.dispose();
  await worker?.dispose();
  process.exit(0);
}
process.once("SIGINT", stop);
process.once("SIGTERM", stop);

await bundler.watch();
