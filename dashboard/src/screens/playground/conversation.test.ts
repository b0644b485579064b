import { describe, expect, it } from "vitest";
import { EMPTY_OUTPUT } from "./chat-stream";
import { messagesOf, needsToolResults, type Turn } from "./conversation";

const assistant = (id: number, fields: object): Turn => ({
  role: "assistant",
  id,
  model: "@cf/hearth/spark",
  output: { ...EMPTY_OUTPUT, ...fields },
  error: null,
  isRunning: false,
});

describe("messagesOf", () => {
  it("sends the system prompt, tool calls and tool results in order", () => {
    const turns: Turn[] = [
      { role: "user", id: 1, content: "Weather?", images: [] },
      assistant(2, { toolCalls: [{ id: "call_1", name: "get_weather", arguments: '{"city":"Paris"}' }] }),
      { role: "tool", id: 3, toolCallId: "call_1", name: "get_weather", content: "12" },
    ];
    expect(needsToolResults(turns.slice(0, 2))).toBe(true);
    expect(messagesOf(turns, "Be brief.")).toEqual([
      { role: "system", content: "Be brief." },
      { role: "user", content: "Weather?" },
      {
        role: "assistant",
        content: null,
        tool_calls: [
          { id: "call_1", type: "function", function: { name: "get_weather", arguments: '{"city":"Paris"}' } },
        ],
      },
      { role: "tool", tool_call_id: "call_1", content: "12" },
    ]);
  });

  it("leaves out turns that failed before any output", () => {
    expect(messagesOf([{ role: "user", id: 1, content: "Hi", images: [] }, assistant(2, {})], " ")).toEqual([
      { role: "user", content: "Hi" },
    ]);
  });
});

describe("images", () => {
  it("are sent before the text of their message", () => {
    const turn: Turn = { role: "user", id: 1, content: "What is this?", images: ["data:image/png;base64,AA=="] };
    expect(messagesOf([turn], "")).toEqual([
      {
        role: "user",
        content: [
          { type: "image_url", image_url: { url: "data:image/png;base64,AA==" } },
          { type: "text", text: "What is this?" },
        ],
      },
    ]);
  });
});
