/** Runs one request of the OpenAI routes and reports its output while it streams. */

import { send } from "@/api/client";
import { addChunk, EMPTY_OUTPUT, type Chunk, type Output, StreamError } from "./chat-stream";
import { readEvents } from "./server-sent-events";

export interface Run {
  accountId: string;
  route: "chat/completions" | "completions";
  body: Record<string, unknown>;
  signal: AbortSignal;
  onOutput: (output: Output) => void;
}

/**
 * Send the request and return its whole output. `onOutput` is called at most once per frame. Throws ApiError,
 * StreamError, and an AbortError if the signal stops the run.
 */
export async function streamRun({ accountId, route, body, signal, onOutput }: Run): Promise<Output> {
  const startedAt = performance.now();
  const response = await send(`/client/v4/accounts/${accountId}/ai/v1/${route}`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  let output = EMPTY_OUTPUT;
  if (!response.body || !response.headers.get("content-type")?.startsWith("text/event-stream")) {
    return addChunk(output, (await response.json()) as Chunk, performance.now() - startedAt);
  }
  const report = oncePerFrame(() => onOutput(output));
  for await (const data of readEvents(response.body)) {
    if (data === "[DONE]") return output;
    output = addChunk(output, JSON.parse(data) as Chunk, performance.now() - startedAt);
    report();
  }
  throw new StreamError("The stream ended before the response was complete.", null);
}

function oncePerFrame(action: () => void): () => void {
  let isScheduled = false;
  return () => {
    if (isScheduled) return;
    isScheduled = true;
    requestAnimationFrame(() => {
      isScheduled = false;
      action();
    });
  };
}
