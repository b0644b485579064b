/** Reads server-sent events from the body of a fetch response. EventSource cannot send a POST request. */

/** Yield the data of each event as text. Comments and empty events are skipped. */
export async function* readEvents(body: ReadableStream<Uint8Array>): AsyncGenerator<string> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      rest += done ? decoder.decode() : decoder.decode(value, { stream: true });
      const events = rest.split(/\r\n\r\n|\n\n|\r\r/);
      rest = done ? "" : (events.pop() ?? "");
      for (const event of events) {
        const data = dataOf(event);
        if (data !== "") yield data;
      }
      if (done) return;
    }
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}

function dataOf(event: string): string {
  return event
    .split(/\r\n|\n|\r/)
    .filter((line) => line.startsWith("data:"))
    .map((line) => line.slice(5).replace(/^ /, ""))
    .join("\n");
}
