// A chat Worker: POST {"question": "..."} returns the response of the model as a stream of server-sent events.

const MODEL = "@cf/hearth/spark";

export default {
  async fetch(request, env) {
    if (request.method !== "POST") {
      return new Response('Send POST {"question": "..."}.\n', { status: 405, headers: { allow: "POST" } });
    }
    let question;
    try {
      ({ question } = await request.json());
    } catch {
      return Response.json({ error: "the body must be JSON" }, { status: 400 });
    }
    if (typeof question !== "string" || question === "") {
      return Response.json({ error: "question must be a string that is not empty" }, { status: 400 });
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
