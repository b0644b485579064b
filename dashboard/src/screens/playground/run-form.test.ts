import { describe, expect, it } from "vitest";
import { fieldsOf, formOf, isComplete } from "./run-form";

const bytes = { type: "string", format: "binary" } as const;
const image = new File([new Uint8Array([1, 2, 255])], "cat.png");

describe("formOf", () => {
  it("uses the variant with fields, not the one for a bare file", () => {
    const form = formOf({ oneOf: [bytes, { type: "object", properties: { image: { type: "array" } } }] });
    expect(form.inputs.map(({ name, kind, isRequired, isByteArray }) => [name, kind, isRequired, isByteArray])).toEqual([
      ["image", "image", true, true],
    ]);
  });

  it("leaves optional images of a text-to-image model optional and offers the shorter field", () => {
    const properties = {
      prompt: { type: "string" },
      image: { type: "array" },
      image_b64: { type: "string" },
      num_steps: { type: "integer", maximum: 20 },
    };
    const form = formOf({ type: "object", properties, required: ["prompt"] });
    expect(form.inputs.map((input) => [input.name, input.isRequired])).toEqual([["prompt", true], ["image_b64", false]]);
    expect(form.parameters.map((parameter) => parameter.name)).toEqual(["num_steps"]);
    expect(isComplete(form, { prompt: " " }, {})).toBe(false);
    expect(isComplete(form, { prompt: "a cat" }, { num_steps: 21 })).toBe(false);
    expect(isComplete(form, { prompt: "a cat" }, { num_steps: 20 })).toBe(true);
  });

  it("sends a multipart prompt for models that take forms", () => {
    const form = formOf({ type: "object", properties: { multipart: { type: "object" } }, required: ["multipart"] });
    expect([form.isMultipart, form.inputs.map((input) => input.name)]).toEqual([true, ["prompt"]]);
  });
});

describe("fieldsOf", () => {
  it("encodes files as the schema asks, and lines as documents", async () => {
    const form = formOf({
      type: "object",
      properties: {
        query: { type: "string" },
        contexts: { type: "array" },
        image_b64: { type: "string" },
        mask: { type: "array" },
      },
    });
    const inputs = { query: "warm", contexts: "one\n\n two ", image_b64: image, mask: image };
    expect(await fieldsOf(form, inputs, {})).toEqual({
      query: "warm",
      contexts: [{ text: "one" }, { text: "two" }],
      image_b64: "AQL/",
      mask: [1, 2, 255],
    });
  });
});
