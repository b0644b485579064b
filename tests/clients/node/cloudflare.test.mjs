// The `cloudflare` package, unmodified but for its base URL.

import assert from "node:assert/strict";
import { test } from "node:test";
import Cloudflare from "cloudflare";
import { MESSAGES, eventsOf, hearth } from "./hearth.mjs";

const client = new Cloudflare({ apiToken: hearth.token, baseURL: hearth.base_url });
const run = (model, inputs) => client.ai.run(model, { account_id: hearth.account, ...inputs });

test("runs a chat model", async () => {
  const result = await run(hearth.chat_model, { messages: MESSAGES, temperature: 0 });
  assert.match(result.response, /Paris/);
});

test("streams the same response", async () => {
  const whole = await run(hearth.chat_model, { messages: MESSAGES, temperature: 0 });
  const request = client.ai.run(hearth.chat_model, { account_id: hearth.account, messages: MESSAGES, temperature: 0, stream: true });
  const events = eventsOf(await (await request.asResponse()).text());
  assert.equal(events.map((event) => event.response).join(""), whole.response);
});

test("embeds texts", async () => {
  const result = await run(hearth.embed_model, { text: ["a cat", "a kitten"] });
  assert.deepEqual(result.shape, [2, 384]);
});

test("lists models to the end of the list", async () => {
  const names = [];
  for await (const model of client.ai.models.list({ account_id: hearth.account })) names.push(model.name);
  assert.ok(names.includes(hearth.chat_model));
  assert.equal(new Set(names).size, names.length);
});

test("reads a model's schema", async () => {
  const schema = await client.ai.models.schema.get({ account_id: hearth.account, model: hearth.chat_model });
  assert.equal(schema.input.type, "object");
});

test("turns files into Markdown", async () => {
  const file = new File(["town,people\nOslo,700000\n"], "towns.csv", { type: "text/csv" });
  const page = await client.ai.toMarkdown.transform({ account_id: hearth.account, file: { files: [file] } });
  const [row] = page.result;
  assert.equal(row.format, "markdown");
  assert.match(row.data, /Oslo/);
});

test("a refusal has its status and code", async () => {
  await assert.rejects(run("@cf/no/such", { prompt: "x" }), (error) => {
    assert.equal(error.status, 400);
    assert.equal(error.errors[0].code, 5007);
    return true;
  });
});

test("its token is active", async () => {
  assert.equal((await client.user.tokens.verify()).status, "active");
});

test("leaving a call ends it", async () => {
  const leaving = new AbortController();
  const inputs = { prompt: "x", max_tokens: 400, ignore_eos: true };
  const request = client.ai.run(hearth.chat_model, { account_id: hearth.account, ...inputs }, { signal: leaving.signal });
  setTimeout(() => leaving.abort(), 50);
  await assert.rejects(request, Cloudflare.APIUserAbortError);
});
