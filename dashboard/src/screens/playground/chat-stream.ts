/** Collects the chunks of a chat or text completion stream into one output, with its timing. Pure. */

export interface ToolCall {
  id: string;
  name: string;
  arguments: string;
}

export interface Usage {
  prompt_tokens: number;
  completion_tokens: number;
  total_tokens?: number;
  prompt_tokens_details?: { cached_tokens?: number } | null;
  completion_tokens_details?: { reasoning_tokens?: number } | null;
}

export interface Output {
  content: string;
  reasoning: string;
  toolCalls: ToolCall[];
  finishReason: string | null;
  usage: Usage | null;
  requestId: string | null;
  numChunks: number;
  /** Milliseconds from the request to the first and the latest chunk with output. */
  firstTokenMs: number | null;
  lastTokenMs: number | null;
}

export const EMPTY_OUTPUT: Output = {
  content: "",
  reasoning: "",
  toolCalls: [],
  finishReason: null,
  usage: null,
  requestId: null,
  numChunks: 0,
  firstTokenMs: null,
  lastTokenMs: null,
};

interface ToolCallPart {
  index?: number;
  id?: string | null;
  function?: { name?: string | null; arguments?: string | null } | null;
}

interface Message {
  content?: string | null;
  reasoning_content?: string | null;
  reasoning?: string | null;
  tool_calls?: ToolCallPart[] | null;
}

/** A chunk of a stream, or a whole response: both have choices. */
export interface Chunk {
  id?: string;
  choices?: { delta?: Message; message?: Message; text?: string; finish_reason?: string | null }[];
  usage?: Usage | null;
  error?: { message?: string; code?: number | string } | null;
}

/** Raised for an error event inside a stream. */
export class StreamError extends Error {
  constructor(
    message: string,
    readonly code: number | string | null,
  ) {
    super(message);
  }
}

/** Return the output with one more chunk, which arrived `elapsedMs` after the request. Throws StreamError. */
export function addChunk(output: Output, chunk: Chunk, elapsedMs: number): Output {
  if (chunk.error) throw new StreamError(chunk.error.message ?? "The stream failed.", chunk.error.code ?? null);
  const next = { ...output, requestId: output.requestId ?? chunk.id ?? null, usage: chunk.usage ?? output.usage };
  const choice = chunk.choices?.[0];
  if (!choice) return next;
  const message = choice.delta ?? choice.message ?? {};
  const content = choice.text ?? message.content ?? "";
  const reasoning = message.reasoning_content ?? message.reasoning ?? "";
  next.content += content;
  next.reasoning += reasoning;
  next.toolCalls = addToolCalls(output.toolCalls, message.tool_calls ?? []);
  next.finishReason = choice.finish_reason ?? output.finishReason;
  if (content || reasoning || message.tool_calls?.length) {
    next.numChunks += 1;
    next.firstTokenMs ??= elapsedMs;
    next.lastTokenMs = elapsedMs;
  }
  return next;
}

function addToolCalls(calls: ToolCall[], parts: ToolCallPart[]): ToolCall[] {
  if (parts.length === 0) return calls;
  const next = [...calls];
  parts.forEach((part, position) => {
    const index = part.index ?? position;
    const call = next[index] ?? { id: "", name: "", arguments: "" };
    next[index] = {
      id: part.id ?? call.id,
      name: call.name + (part.function?.name ?? ""),
      arguments: call.arguments + (part.function?.arguments ?? ""),
    };
  });
  return next;
}

const MIN_STREAM_MS = 20;

/** Return the tokens per second after the first token, or null before there are two. */
export function tokensPerSecond(output: Output): number | null {
  const { firstTokenMs, lastTokenMs } = output;
  if (firstTokenMs === null || lastTokenMs === null || lastTokenMs <= firstTokenMs) return null;
  const tokens = output.usage?.completion_tokens ?? output.numChunks;
  if (tokens <= 1) return null;
  // Tokens that arrive in one packet say nothing about the time between tokens; the whole response does.
  if (lastTokenMs - firstTokenMs < MIN_STREAM_MS) return (tokens * 1000) / lastTokenMs;
  return ((tokens - 1) * 1000) / (lastTokenMs - firstTokenMs);
}
