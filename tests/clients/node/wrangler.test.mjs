// `wrangler dev --local` at the newest version that posts to `ai/run/proxy`, with its API's address changed.

import { writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { bindingSuite } from "./binding_suite.mjs";
import { Process, hearth, temporaryFolder } from "./hearth.mjs";

const WRANGLER = join(dirname(createRequire(import.meta.url).resolve("wrangler/package.json")), "bin", "wrangler.js");
const CONFIG = `
name = "probe"
main = "${fileURLToPath(new URL("probe.js", import.meta.url))}"
compatibility_date = "2025-10-01"
send_metrics = false
[ai]
binding = "AI"
`;

bindingSuite("wrangler dev", async () => {
  const { folder, remove } = await temporaryFolder();
  await writeFile(join(folder, "wrangler.toml"), CONFIG);
  const env = {
    ...process.env,
    HOME: folder,
    XDG_CONFIG_HOME: join(folder, "config"),
    CLOUDFLARE_API_BASE_URL: hearth.base_url,
    CLOUDFLARE_API_TOKEN: hearth.token,
    CLOUDFLARE_ACCOUNT_ID: hearth.account,
    WRANGLER_SEND_METRICS: "false",
    WRANGLER_HIDE_BANNER: "true",
    CI: "1",
    NO_COLOR: "1",
  };
  const args = [WRANGLER, "dev", "--local", "--ip", "127.0.0.1", "--port", "0", "--inspector-port", "0"];
  const wrangler = new Process(process.execPath, args, { cwd: folder, env });
  const [, url] = await wrangler.until(/Ready on (http:\/\/127\.0\.0\.1:\d+)/);
  return { url, stop: () => wrangler.stop().then(remove) };
}, { isWrapped: true });
