/** Write src/api/schema.d.ts from the OpenAPI document of the gateway's source. Needs Python, not a running gateway. */

import { execFileSync } from "node:child_process";
import { existsSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import openapiTS, { astToString } from "openapi-typescript";

const ROOT = join(import.meta.dirname, "..", "..");
const VENV_PYTHON = join(ROOT, ".venv", "bin", "python");
const python = process.env.PYTHON ?? (existsSync(VENV_PYTHON) ? VENV_PYTHON : "python3");

const text = execFileSync(python, ["-m", "scripts.write_openapi"], {
  cwd: ROOT,
  env: { ...process.env, PYTHONPATH: ROOT },
  maxBuffer: 64 * 1024 * 1024,
});
const types = astToString(await openapiTS(JSON.parse(text.toString()), { defaultNonNullable: false }));
writeFileSync(join(ROOT, "dashboard", "src", "api", "schema.d.ts"), types);
console.log(`wrote src/api/schema.d.ts (${types.length} characters)`);
