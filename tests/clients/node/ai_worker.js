// A Worker on the AI SDK: packages of npm bundled into it, the provider on the AI binding; and on KV, D1 and R2.

import { streamText } from "ai";
import { createWorkersAI } from "workers-ai-provider";

export default {
  async fetch(request, env) {
    const { model, question } = await request.json();
    const answered = (await env.KV.get("answered")) ?? "0";
    await env.KV.put("answered", String(Number(answered) + 1));
    await env.DB.exec("CREATE TABLE IF NOT EXISTS questions (text TEXT)");
    await env.DB.prepare("INSERT INTO questions VALUES (?)").bind(question).run();
    const { count } = await env.DB.prepare("SELECT count(*) AS count FROM questions").first();
    const ai = createWorkersAI({ binding: env.AI });
    const { textStream } = streamText({ model: ai(model), prompt: question, temperature: 0 });
    let text = "";
    for await (const piece of textStream) text += piece;
    await env.BUCKET.put("latest", text);
    const latest = await (await env.BUCKET.get("latest")).text();
    return Response.json({ text: latest, answered: Number(answered) + 1, count });
  },
};
