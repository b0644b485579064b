// A streaming chat: POST {"question": "..."} and read the answer as it is written, as server-sent events.

const MODEL = "@cf/hearth/spark";

export default {
  async fetch(request, env) {
    if (request.method !== "POST") {
      return new Response('POST {"question": "..."} to ask.\n', { status: 405, headers: { allow: "POST" } });
    }
    let question;
    try {
      ({ question } = await request.json());
    } catch {
      return Response.json({ error: "the body is no JSON" }, { status: 400 });
    }
    if (typeof question !== "string" || question === "") {
      return Response.json({ error: "question must be a text" }, { status: 400 });
    }
    const stream = await env.AI.run(MODEL, {
      messages: [
        { role: "system", content: "You are a helpful assistant." },
        { role: "user", content: question },
      ],
      stream: true,
    });
    return new Response(stream, {
      headers: { "content-type": "text/event-stream", "cache-control": "no-cache" },
    });
  },
};
