import { describe, expect, it } from "vitest";
import { codeSample, sampleBody, type SampledCall } from "./code-samples";

const CALL: SampledCall = {
  origin: "https://hearth.example",
  accountId: "0123456789abcdef0123456789abcdef",
  model: "@cf/hearth/spark",
  route: "chat/completions",
  body: { messages: [{ role: "user", content: "It's $HOME & \"more\"" }], temperature: 0.5 },
};

describe("codeSample", () => {
  it("quotes text for the shell", () => {
    const sample = codeSample(CALL, "curl");
    expect(sample).toContain(`'https://hearth.example/client/v4/accounts/${CALL.accountId}/ai/v1/chat/completions'`);
    expect(sample).toContain("It'\\''s $HOME");
  });

  it("writes Python literals and puts fields of other servers into extra_body", () => {
    const sample = codeSample({ ...CALL, body: { ...CALL.body, stream: true, top_k: 5, lora: "pirate" } }, "python");
    expect(sample).toContain("stream=True");
    expect(sample).toContain('extra_body={"top_k": 5, "lora": "pirate"}');
    expect(sample).toContain("for chunk in response:");
    expect(sample).not.toContain("    top_k=");
  });

  it("uses the client's method for each route", () => {
    const body = { input: ["a"] };
    expect(codeSample({ ...CALL, route: "embeddings", body }, "javascript")).toContain("client.embeddings.create(");
    expect(codeSample({ ...CALL, route: "embeddings", body }, "worker")).toContain('"text": [');
  });

  it("has a sample in every language for every task", () => {
    for (const task of ["Text Generation", "Text Embeddings", "Translation", "Text-to-Image", "Anything"]) {
      const call = { ...CALL, ...sampleBody(task) };
      expect(codeSample(call, "curl")).toContain("curl ");
      expect(codeSample(call, "worker")).toContain("env.AI.run(");
      expect(codeSample(call, "python")).toContain(call.model);
      expect(codeSample(call, "javascript")).toContain(call.model);
    }
  });
});
