// Plain workerd: the wiring of examples/worker/workerd.capnp, with this Hearth and the probe in it.

import { copyFile, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import workerd from "workerd";
import { bindingSuite } from "./binding_suite.mjs";
import { Process, hearth, temporaryFolder } from "./hearth.mjs";

const EXAMPLE = new URL("../../../examples/worker/workerd.capnp", import.meta.url);

export async function startWorkerd(script) {
  const { folder, remove } = await temporaryFolder();
  const config = (await readFile(EXAMPLE, "utf8"))
    .replace("127.0.0.1:8787", new URL(hearth.origin).host)
    .replace("127.0.0.1:8788", "127.0.0.1:0")
    .replace("YOUR_TOKEN", hearth.token)
    .replace("YOUR_ACCOUNT", hearth.account)
    .replace("chat.js", "script.js");
  await writeFile(join(folder, "config.capnp"), config);
  await copyFile(script, join(folder, "script.js"));
  const process = new Process(workerd.default, ["serve", join(folder, "config.capnp"), "--control-fd=3"]);
  const [, port] = await process.until(/"port":(\d+)/);
  return { url: `http://127.0.0.1:${port}`, stop: () => process.stop().then(remove) };
}

bindingSuite("plain workerd", () => startWorkerd(new URL("probe.js", import.meta.url)), { isWrapped: false });
