// miniflare's own `ai` option, pointed at Hearth as at a remote proxy.

import { Miniflare } from "miniflare";
import { fileURLToPath } from "node:url";
import { bindingSuite } from "./binding_suite.mjs";
import { hearth } from "./hearth.mjs";

bindingSuite("miniflare", async () => {
  const miniflare = new Miniflare({
    modules: true,
    scriptPath: fileURLToPath(new URL("probe.js", import.meta.url)),
    compatibilityDate: "2026-07-30",
    ai: {
      binding: "AI",
      remoteProxyConnectionString: new URL(`${hearth.origin}/mf/${hearth.account}/${hearth.token}`),
    },
  });
  const url = await miniflare.ready;
  return { url: url.href, stop: () => miniflare.dispose() };
}, { isWrapped: true });
