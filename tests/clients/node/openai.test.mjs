// The `openai` package, unmodified but for its base URL.

import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";
import { MESSAGES, hearth } from "./hearth.mjs";

const client = new OpenAI({ apiKey: hearth.token, baseURL: `${hearth.ai_url}/v1` });
const ask = { model: hearth.chat_model, messages: MESSAGES, temperature: 0 };

test("chats", async () => {
  const response = await client.chat.completions.create(ask);
  assert.match(response.choices[0].message.content, /Paris/);
  assert.equal(response.choices[0].finish_reason, "stop");
});

test("streams the same response with its usage", async () => {
  const whole = await client.chat.completions.create(ask);
  let text = "";
  let usage;
  const stream = await client.chat.completions.create({ ...ask, stream: true, stream_options: { include_usage: true } });
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta.content ?? "";
    usage = chunk.usage ?? usage;
  }
  assert.equal(text, whole.choices[0].message.content);
  assert.deepEqual(usage.completion_tokens, whole.usage.completion_tokens);
});

test("runs a tool in two steps", async () => {
  const messages = [{ role: "user", content: "What is the weather in Paris?" }];
  const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
  const tools = [{ type: "function", function: { name: "get_weather", description: "Get the weather in a city", parameters } }];
  const first = await client.chat.completions.create({ ...ask, messages, tools });
  const [call] = first.choices[0].message.tool_calls;
  assert.deepEqual([call.function.name, Object.keys(JSON.parse(call.function.arguments))], ["get_weather", ["city"]]);
  const result = { role: "tool", tool_call_id: call.id, content: '{"temperature": 12, "condition": "sunny"}' };
  const second = await client.chat.completions.create({ ...ask, messages: [...messages, first.choices[0].message, result], tools });
  assert.ok(second.choices[0].message.content);
});

test("keeps to a schema", async () => {
  const schema = { type: "object", properties: { name: { type: "string" }, city: { type: "string" } }, required: ["name", "city"] };
  const response = await client.chat.completions.create({
    ...ask,
    messages: [{ role: "user", content: "Extract name and city as JSON: Maria lives in Oslo." }],
    response_format: { type: "json_schema", json_schema: { name: "person", schema } },
  });
  assert.deepEqual(Object.keys(JSON.parse(response.choices[0].message.content)).sort(), ["city", "name"]);
});

test("responds, whole and as events", async () => {
  const request = { model: hearth.chat_model, input: MESSAGES[0].content, temperature: 0 };
  const whole = await client.responses.create(request);
  assert.match(whole.output_text, /Paris/);
  let text = "";
  for await (const event of await client.responses.create({ ...request, stream: true })) {
    if (event.type === "response.output_text.delta") text += event.delta;
  }
  assert.equal(text, whole.output_text);
});

test("embeds in both encodings", async () => {
  const input = ["a cat", "a kitten"];
  const packed = await client.embeddings.create({ model: hearth.embed_model, input });
  const plain = await client.embeddings.create({ model: hearth.embed_model, input, encoding_format: "float" });
  assert.equal(packed.data[1].embedding.length, 384);
  packed.data[1].embedding.forEach((value, i) => assert.ok(Math.abs(value - plain.data[1].embedding[i]) < 1e-6));
});

test("lists models", async () => {
  const names = [];
  for await (const model of client.models.list()) names.push(model.id);
  assert.ok(names.includes(hearth.chat_model));
  assert.equal((await client.models.retrieve(hearth.chat_model)).id, hearth.chat_model);
});

test("a refusal is the class of its status", async () => {
  await assert.rejects(client.chat.completions.create({ ...ask, model: "@cf/no/such" }), OpenAI.BadRequestError);
  const unauthenticated = new OpenAI({ apiKey: `cfut_${"a".repeat(46)}`, baseURL: `${hearth.ai_url}/v1` });
  await assert.rejects(unauthenticated.chat.completions.create(ask), OpenAI.AuthenticationError);
});
