// Tests of a Worker's AI binding for each way in which its requests reach Hearth. `start` returns the URL of a running
// probe.js. `isWrapped`: requests arrive inside requests to one URL, not as themselves.

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { MESSAGES, QUESTION, eventsOf, hearth } from "./hearth.mjs";

const ask = { model: hearth.chat_model, inputs: { messages: MESSAGES, temperature: 0 } };

export function bindingSuite(name, start, { isWrapped }) {
  describe(name, () => {
    let worker;
    const post = (request) => fetch(worker.url, { method: "POST", body: JSON.stringify(request) });
    const call = async (request) => {
      const response = await post(request);
      const body = await response.json();
      assert.equal(response.status, 200, JSON.stringify(body));
      return body.result;
    };
    before(async () => { worker = await start(); }, { timeout: 120_000 });
    after(() => worker?.stop());

    test("run gives the bare response and the request's id", async () => {
      const response = await (await post({ call: "run", ...ask })).json();
      assert.match(response.result.response, /Paris/);
      assert.equal(response.result.usage.total_tokens, response.result.usage.prompt_tokens + response.result.usage.completion_tokens);
      assert.match(response.requestId, /^[0-9a-f-]{36}$/);
    });

    test("run streams the same response", async () => {
      const whole = await call({ call: "run", ...ask });
      const response = await post({ call: "run", ...ask, inputs: { ...ask.inputs, stream: true } });
      const events = eventsOf(await response.text());
      assert.ok(events.length > 2);
      assert.equal(events.map((event) => event.response).join(""), whole.response);
      assert.deepEqual(events.at(-1).usage.completion_tokens, whole.usage.completion_tokens);
    });

    test("run takes a prefix, strings for booleans, a session and a gateway's options", async () => {
      const options = { prefix: "mine", extraHeaders: { "x-session-affinity": "s-1" }, tags: ["a"], rejectIfBusy: false };
      const inputs = { ...ask.inputs, stream: "false", max_tokens: "40" };
      const whole = await call({ call: "run", ...ask, inputs, options });
      assert.match(whole.response, /Paris/);
      const through = await call({ call: "run", ...ask, options: { gateway: { id: "default", skipCache: true } } });
      assert.equal(through.response, whole.response);
    });

    test("run embeds", async () => {
      const result = await call({ call: "run", model: hearth.embed_model, inputs: { text: ["a cat", "a kitten"] } });
      assert.deepEqual(result.shape, [2, 384]);
      assert.equal(result.data[1].length, 384);
    });

    test("a refusal is an exception with its code", async () => {
      const unknown = await post({ call: "run", ...ask, model: "@cf/no/such" });
      assert.equal(unknown.status, 500);
      const body = await unknown.json();
      assert.equal(body.name, "AiError");
      assert.match(body.message, /^5007: No such model @cf\/no\/such or task$/);
      const bad = await (await post({ call: "run", ...ask, inputs: { prompt: 5 } })).json();
      assert.match(bad.message, /^5006: Bad input: .*prompt/);
    });

    test("returnRawResponse hands over the response, also of a refused call", async () => {
      const options = { returnRawResponse: true };
      const good = await post({ call: "run", ...ask, options });
      assert.equal(good.headers.get("content-type"), "application/json");
      assert.match((await good.json()).response, /Paris/);
      const bad = await post({ call: "run", ...ask, model: "@cf/no/such", options });
      assert.equal(bad.status, 400);
      assert.equal((await bad.json()).internalCode, 5007);
    });

    test("a form without a boundary, and a stream beside other inputs, find their names", async () => {
      const fromForm = await call({ call: "form", model: ask.model, inputs: { prompt: "Hello", max_tokens: "5" } });
      assert.ok(fromForm.usage.completion_tokens <= 5);
      const streamed = await call({ call: "stream", model: ask.model, text: "Hello", inputs: { temperature: 0, max_tokens: 5 } });
      const plain = await call({ call: "run", model: ask.model, inputs: { prompt: "Hello", temperature: 0, max_tokens: 5 } });
      assert.equal(streamed.response, plain.response);
    });

    test("models are listed", async () => {
      const models = await call({ call: "models", params: { search: hearth.chat_model } });
      assert.deepEqual(models.map((model) => model.name), [hearth.chat_model, `${hearth.chat_model}-draft`]);
    });

    test("files become Markdown", async () => {
      const row = await call({ call: "markdown", name: "towns.csv", text: "town,people\nOslo,700000\n" });
      assert.equal(row.format, "markdown");
      assert.match(row.data, /\| Oslo \| 700000 \|/);
      const kinds = await call({ call: "supported" });
      assert.ok(kinds.some((kind) => kind.extension === ".csv"));
    });

    test("fetch reaches the binding's own routes", async () => {
      const found = await call({ call: "fetch", path: "/ai-api/models/search" });
      assert.ok((found.result ?? found).some((model) => model.name === hearth.chat_model));
    });

    // Without a wrapper, a reverse proxy before Hearth sees the path of every request and can refuse it.
    if (isWrapped) test("fetch reaches no other route through the wrapper", async () => {
      const refused = await call({ call: "fetch", path: `/client/v4/accounts/${hearth.account}/ai/v1/models` });
      assert.equal(refused.data, undefined);
    });

    test("many calls at once are each their own", async () => {
      const questions = [QUESTION, "What is the capital of Italy?", "What is the capital of Spain?"];
      const requests = questions.map((content) => ({ ...ask, inputs: { messages: [{ role: "user", content }], temperature: 0 } }));
      const alone = [];
      for (const each of requests) alone.push((await call({ call: "run", ...each })).response);
      const together = await Promise.all(requests.map((each) => call({ call: "run", ...each })));
      assert.deepEqual(together.map((result) => result.response), alone);
    });
  });
}
