// A Worker that makes the requested call of its AI binding and returns the result or the error.

const calls = {
  run: (env, { model, inputs, options }) => env.AI.run(model, inputs, options),
  form: (env, { model, inputs }) => {
    const form = new FormData();
    for (const [name, value] of Object.entries(inputs)) form.append(name, value);
    const body = new Response(form).body;
    return env.AI.run(model, { form: { body, contentType: "multipart/form-data" } }, { gateway: undefined });
  },
  stream: (env, { model, text, inputs }) => {
    const body = new Blob([text]).stream();
    return env.AI.run(model, { ...inputs, prompt: { body, contentType: "text/plain" } }, { gateway: undefined });
  },
  models: (env, { params }) => env.AI.models(params),
  markdown: (env, { name, text }) => env.AI.toMarkdown({ name, blob: new Blob([text], { type: "text/csv" }) }),
  supported: (env) => env.AI.toMarkdown().supported(),
  fetch: async (env, { path }) => (await env.AI.fetch(`https://workers-binding.ai${path}`)).json(),
};

export default {
  async fetch(request, env) {
    const asked = await request.json();
    try {
      const result = await calls[asked.call](env, asked);
      if (result instanceof Response) return result;
      if (result instanceof ReadableStream) {
        return new Response(result, { headers: { "content-type": "text/event-stream" } });
      }
      return Response.json({ result, requestId: env.AI.lastRequestId });
    } catch (error) {
      return Response.json({ name: error.name, message: error.message }, { status: 500 });
    }
  },
};
