import { describe, expect, it } from "vitest";
import { addChunk, EMPTY_OUTPUT, StreamError, tokensPerSecond, type Chunk } from "./chat-stream";

function collect(chunks: [number, Chunk][]) {
  return chunks.reduce((output, [elapsedMs, chunk]) => addChunk(output, chunk, elapsedMs), EMPTY_OUTPUT);
}

const delta = (fields: object): Chunk => ({ id: "chatcmpl-1", choices: [{ delta: fields }] });

describe("addChunk", () => {
  it("joins content and reasoning, and measures the first and last token", () => {
    const output = collect([
      [50, delta({ role: "assistant" })],
      [100, delta({ reasoning_content: "Let me " })],
      [150, delta({ reasoning_content: "think." })],
      [300, delta({ content: "4" })],
      [310, { choices: [{ delta: {}, finish_reason: "stop" }] }],
      [311, { choices: [], usage: { prompt_tokens: 9, completion_tokens: 5 } }],
    ]);
    expect(output).toMatchObject({
      content: "4",
      reasoning: "Let me think.",
      finishReason: "stop",
      requestId: "chatcmpl-1",
      firstTokenMs: 100,
      lastTokenMs: 300,
    });
    expect(tokensPerSecond(output)).toBeCloseTo(20);
  });

  it("joins the parts of several tool calls by index", () => {
    const output = collect([
      [1, delta({ tool_calls: [{ index: 0, id: "call_a", function: { name: "one", arguments: "" } }] })],
      [2, delta({ tool_calls: [{ index: 0, function: { arguments: '{"x":' } }] })],
      [3, delta({ tool_calls: [{ index: 0, function: { arguments: "1}" } }] })],
      [4, delta({ tool_calls: [{ index: 1, id: "call_b", function: { name: "two", arguments: "{}" } }] })],
    ]);
    expect(output.toolCalls).toEqual([
      { id: "call_a", name: "one", arguments: '{"x":1}' },
      { id: "call_b", name: "two", arguments: "{}" },
    ]);
  });

  it("reads text completions and whole responses", () => {
    expect(collect([[5, { choices: [{ text: "Once" }] }]]).content).toBe("Once");
    expect(collect([[5, { choices: [{ message: { content: "Hi" }, finish_reason: "stop" }] }]]).content).toBe("Hi");
  });

  it("throws the message of an error event", () => {
    expect(() => collect([[5, { error: { message: "timeout", code: 3007 } }]])).toThrow(StreamError);
  });

  it("measures the whole response if its tokens arrive together", () => {
    const output = collect([
      [80, delta({ content: "a" })],
      [80.2, delta({ content: "b" })],
    ]);
    expect(tokensPerSecond(output)).toBeCloseTo(25, 0);
  });

  it("has no speed before the second token", () => {
    expect(tokensPerSecond(collect([[5, delta({ content: "a" })]]))).toBeNull();
  });
});
