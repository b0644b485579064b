/** The turns of a conversation, and the messages that they become in a request. Pure. */

import type { Output } from "./chat-stream";

export interface UserTurn {
  role: "user";
  id: number;
  content: string;
  /** Attached images as `data:` URLs. */
  images: string[];
}

export interface AssistantTurn {
  role: "assistant";
  id: number;
  model: string;
  output: Output;
  error: unknown;
  isRunning: boolean;
}

export interface ToolTurn {
  role: "tool";
  id: number;
  toolCallId: string;
  name: string;
  content: string;
}

export type Turn = UserTurn | AssistantTurn | ToolTurn;

type Message = Record<string, unknown>;

/** Return the messages of a request that continues the conversation. Failed turns without output are left out. */
export function messagesOf(turns: Turn[], systemPrompt: string): Message[] {
  const system: Message[] = systemPrompt.trim() === "" ? [] : [{ role: "system", content: systemPrompt }];
  return [...system, ...turns.flatMap(toMessages)];
}

function toMessages(turn: Turn): Message[] {
  if (turn.role === "user") return [{ role: "user", content: contentOf(turn) }];
  if (turn.role === "tool") return [{ role: "tool", tool_call_id: turn.toolCallId, content: turn.content }];
  const { content, toolCalls } = turn.output;
  if (toolCalls.length === 0) return content === "" ? [] : [{ role: "assistant", content }];
  const calls = toolCalls.map((call) => ({
    id: call.id,
    type: "function",
    function: { name: call.name, arguments: call.arguments },
  }));
  return [{ role: "assistant", content: content === "" ? null : content, tool_calls: calls }];
}

function contentOf({ content, images }: UserTurn): string | Message[] {
  if (images.length === 0) return content;
  const parts: Message[] = images.map((url) => ({ type: "image_url", image_url: { url } }));
  return content === "" ? parts : [...parts, { type: "text", text: content }];
}

/** Return True if the last turn calls tools whose results the conversation does not have yet. */
export function needsToolResults(turns: Turn[]): boolean {
  const last = turns.at(-1);
  return last?.role === "assistant" && !last.isRunning && last.output.toolCalls.length > 0;
}
