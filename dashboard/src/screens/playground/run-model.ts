/** Runs one input with a model on the native route. */

import { send } from "@/api/client";
import type { Values } from "./schema-parameters";

/** The `result` of a JSON response, or the file that the response consists of. */
export type RunOutput = { kind: "json"; value: unknown } | { kind: "file"; blob: Blob };

export interface RunResult {
  output: RunOutput;
  elapsedMs: number;
  /** The price in neurons, if the response names it. */
  neurons: number | null;
}

export async function runModel(
  accountId: string,
  model: string,
  fields: Values,
  isMultipart: boolean,
  signal: AbortSignal,
): Promise<RunResult> {
  const startedAt = performance.now();
  const response = await send(`/client/v4/accounts/${accountId}/ai/run/${model}`, {
    method: "POST",
    ...(isMultipart ? { body: toForm(fields) } : jsonBody(fields)),
    signal,
  });
  const isJson = response.headers.get("content-type")?.startsWith("application/json") ?? false;
  const output: RunOutput = isJson
    ? { kind: "json", value: ((await response.json()) as { result?: unknown }).result }
    : { kind: "file", blob: await response.blob() };
  const neurons = Number(response.headers.get("cf-ai-neurons") ?? NaN);
  return { output, elapsedMs: performance.now() - startedAt, neurons: Number.isFinite(neurons) ? neurons : null };
}

function jsonBody(fields: Values): RequestInit {
  return { headers: { "content-type": "application/json" }, body: JSON.stringify(fields) };
}

function toForm(fields: Values): FormData {
  const form = new FormData();
  for (const [name, value] of Object.entries(fields)) form.append(name, String(value));
  return form;
}
