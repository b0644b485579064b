import { describe, expect, it } from "vitest";
import { readEvents } from "./server-sent-events";

function streamOf(bytes: Uint8Array, size: number): ReadableStream<Uint8Array> {
  return new ReadableStream({
    start(controller) {
      for (let start = 0; start < bytes.length; start += size) controller.enqueue(bytes.slice(start, start + size));
      controller.close();
    },
  });
}

async function read(text: string, size: number): Promise<string[]> {
  const found: string[] = [];
  for await (const data of readEvents(streamOf(new TextEncoder().encode(text), size))) found.push(data);
  return found;
}

describe("readEvents", () => {
  const text = 'data: {"a": "grüße 🔥"}\n\n: a comment\n\nevent: x\ndata:one\ndata: two\n\ndata: [DONE]\n\n';

  it.each([1, 2, 3, 7, 1000])("returns the same events for chunks of %i bytes", async (size) => {
    expect(await read(text, size)).toEqual(['{"a": "grüße 🔥"}', "one\ntwo", "[DONE]"]);
  });

  it("accepts CRLF and returns the last event of a stream that ends without an empty line", async () => {
    expect(await read("data: a\r\n\r\ndata: b", 1000)).toEqual(["a", "b"]);
  });
});
