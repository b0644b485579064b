import { describe, expect, it } from "vitest";
import { bodyOf, errorOf, parametersOf, variantWith, type Schema } from "./schema-parameters";

const INPUT: Schema = {
  type: "object",
  oneOf: [
    { title: "Prompt", required: ["prompt"], properties: { prompt: { type: "string" } } },
    {
      title: "Messages",
      required: ["messages"],
      properties: {
        messages: { type: "array", items: { type: "object" } },
        max_tokens: { type: "integer", minimum: 1, maximum: 2048, default: 256 },
        temperature: { type: "number", minimum: 0, maximum: 5, default: 0.6 },
        stop: { type: ["string", "array"], items: { type: "string" } },
        raw: { type: "boolean", default: false },
        pooling: { type: "string", enum: ["mean", "cls"] },
        logit_bias: { type: "object" },
        lora: { type: "string" },
      },
    },
  ],
};

const messages = variantWith(INPUT, "messages") as Schema;
const parameters = parametersOf(messages, new Set(["messages"]));
const named = (name: string) => parameters.find((each) => each.name === name)!;

describe("parametersOf", () => {
  it("chooses a control for every type of value", () => {
    expect(Object.fromEntries(parameters.map((each) => [each.name, each.kind]))).toEqual({
      max_tokens: "integer",
      temperature: "slider",
      stop: "list",
      raw: "boolean",
      pooling: "choice",
      logit_bias: "json",
      lora: "text",
    });
  });

  it("keeps bounds, default and choices", () => {
    expect(named("max_tokens")).toMatchObject({ label: "Max tokens", minimum: 1, maximum: 2048, default: 256 });
    expect(named("pooling").choices).toEqual(["mean", "cls"]);
  });

  it("finds the variant by property, or none", () => {
    expect(variantWith(INPUT, "text")).toBeNull();
    expect(variantWith({ properties: { text: { type: "string" } } }, "text")).not.toBeNull();
  });
});

describe("bodyOf", () => {
  it("contains only values that are set and valid", () => {
    const values = { max_tokens: 0, temperature: 0, stop: [], lora: "", logit_bias: '{"5": 1}', raw: false };
    expect(bodyOf(parameters, values)).toEqual({ temperature: 0, logit_bias: { "5": 1 }, raw: false });
  });

  it("names the bound that a value violates", () => {
    expect(errorOf(named("max_tokens"), 5000)).toBe("Must be at most 2048.");
    expect(errorOf(named("max_tokens"), 1.5)).toBe("Must be a whole number.");
    expect(errorOf(named("logit_bias"), "{")).not.toBeNull();
  });
});
