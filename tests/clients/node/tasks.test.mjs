// Tasks besides chat and embeddings, with the `cloudflare` and `openai` packages, unmodified but for their base URLs.

import assert from "node:assert/strict";
import { createReadStream } from "node:fs";
import { readFile } from "node:fs/promises";
import { test } from "node:test";
import Cloudflare from "cloudflare";
import OpenAI from "openai";
import { hearth } from "./hearth.mjs";

const { HEARTH_CLIENT_CLASSIFIER: classifier, HEARTH_CLIENT_LISTENER: listener, HEARTH_CLIENT_RECORDING: recording } = process.env;
const cloudflare = new Cloudflare({ apiToken: hearth.token, baseURL: hearth.base_url });
const openai = new OpenAI({ apiKey: hearth.token, baseURL: `${hearth.ai_url}/v1` });
const run = (model, inputs) => cloudflare.ai.run(model, { account_id: hearth.account, ...inputs });

test("cloudflare classifies a text", async () => {
  const labels = await run(classifier, { text: "This is a wonderful film." });
  assert.equal(labels.reduce((best, each) => (each.score > best.score ? each : best)).label, "POSITIVE");
});

test("openai moderates a text", async () => {
  const { results } = await openai.moderations.create({ model: classifier, input: "This is a wonderful film." });
  assert.equal(typeof results[0].flagged, "boolean");
});

test("cloudflare transcribes a recording", async () => {
  const audio = [...(await readFile(recording))];
  assert.match((await run(listener, { audio })).text, /ask what you can do for your country/i);
});

test("openai transcribes a recording", async () => {
  const transcript = await openai.audio.transcriptions.create({ model: listener, file: createReadStream(recording) });
  assert.match(transcript.text, /ask what you can do for your country/i);
});
