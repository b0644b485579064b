// The AI SDK (`ai`) over its two providers: `workers-ai-provider`, whose address only its `fetch` can change, and
// `@ai-sdk/openai-compatible`.

import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { Output, embedMany, generateText, stepCountIs, streamText, tool } from "ai";
import { createWorkersAI } from "workers-ai-provider";
import { z } from "zod";
import { QUESTION, hearth } from "./hearth.mjs";

const here = (url, init) => fetch(String(url).replace("https://api.cloudflare.com", hearth.origin), init);
const workersAI = createWorkersAI({ accountId: hearth.account, apiKey: hearth.token, fetch: here });
const compatible = createOpenAICompatible({
  name: "hearth",
  apiKey: hearth.token,
  baseURL: `${hearth.ai_url}/v1`,
  supportsStructuredOutputs: true,
});

const weather = tool({
  description: "Get the weather in a city",
  inputSchema: z.object({ city: z.string() }),
  execute: async ({ city }) => ({ city, temperature: 12, condition: "sunny" }),
});

for (const [name, model] of [
  ["workers-ai-provider", workersAI(hearth.chat_model)],
  ["openai-compatible", compatible(hearth.chat_model)],
]) {
  describe(name, () => {
    test("generates text", async () => {
      const { text, usage, finishReason } = await generateText({ model, prompt: QUESTION, temperature: 0 });
      assert.match(text, /Paris/);
      assert.equal(finishReason, "stop");
      assert.ok(usage.outputTokens > 0);
    });

    test("streams text", async () => {
      const result = streamText({ model, prompt: QUESTION, temperature: 0 });
      let text = "";
      for await (const piece of result.textStream) text += piece;
      assert.match(text, /Paris/);
      assert.equal(await result.finishReason, "stop");
    });

    test("runs a tool and goes on", async () => {
      const request = { model, prompt: "What is the weather in Paris?", tools: { get_weather: weather }, temperature: 0 };
      const { steps } = await generateText({ ...request, stopWhen: stepCountIs(2) });
      assert.equal(steps.length, 2);
      assert.equal(steps[0].toolCalls[0].toolName, "get_weather");
      assert.equal(steps[0].toolResults[0].output.temperature, 12);
    });

    test("a refusal is an error with its status", async () => {
      const unknown = name === "openai-compatible" ? compatible("@cf/no/such") : workersAI("@cf/no/such");
      await assert.rejects(generateText({ model: unknown, prompt: "x", maxRetries: 0 }), (error) => {
        assert.equal(error.statusCode, 400, String(error));
        return true;
      });
    });
  });
}

test("an object keeps to its schema", async () => {
  const schema = z.object({ name: z.string(), city: z.string() });
  const prompt = "Extract name and city as JSON: Maria lives in Oslo.";
  const model = compatible(hearth.chat_model);
  const { output } = await generateText({ model, output: Output.object({ schema }), prompt, temperature: 0 });
  assert.deepEqual(Object.keys(output).sort(), ["city", "name"]);
});

for (const [name, model] of [
  ["workers-ai-provider", workersAI.textEmbeddingModel(hearth.embed_model)],
  ["openai-compatible", compatible.embeddingModel(hearth.embed_model)],
]) {
  test(`${name} embeds`, async () => {
    const { embeddings } = await embedMany({ model, values: ["a cat", "a kitten"] });
    assert.deepEqual(embeddings.map((each) => each.length), [384, 384]);
  });
}
