import { describe, expect, it } from "vitest";
import { filterModels, type CatalogFilters, type CatalogModel } from "./catalog-filters";

function model(name: string, task: string, properties: Record<string, unknown>): CatalogModel {
  return {
    id: name,
    name,
    description: `A model for ${task}`,
    task: { id: task, name: task, description: "" },
    created_at: "2026-11-20 00:00:00.000",
    properties: Object.entries(properties).map(([property_id, value]) => ({ property_id, value })),
  };
}

const MODELS = [
  model("@cf/meta/llama", "Text Generation", {
    context_window: "128000",
    function_calling: "true",
    lora: "true",
    price: [{ unit: "per M input tokens", price: 0.3, currency: "USD" }],
  }),
  model("@cf/hearth/spark", "Text Generation", { context_window: "2048", lora: "true" }),
  model("@cf/openai/whisper", "Automatic Speech Recognition", {
    price: [{ unit: "per audio minute", price: 0.0005, currency: "USD" }],
  }),
];
const NONE: CatalogFilters = { search: "", task: "", author: "", capabilities: "", max_price: "", min_context: "" };
const names = (filters: Partial<CatalogFilters>) =>
  filterModels(MODELS, { ...NONE, ...filters }).map((each) => each.name.split("/")[2]);

describe("filterModels", () => {
  it("finds models by all words, in name, description and task", () => {
    expect(names({ search: "text LLAMA" })).toEqual(["llama"]);
    expect(names({ search: "nothing" })).toEqual([]);
  });

  it("requires all capabilities", () => {
    expect(names({ capabilities: "lora" })).toEqual(["llama", "spark"]);
    expect(names({ capabilities: "lora,function_calling" })).toEqual(["llama"]);
  });

  it("filters by task, author, price and context window", () => {
    expect(names({ task: "Automatic Speech Recognition" })).toEqual(["whisper"]);
    expect(names({ author: "hearth" })).toEqual(["spark"]);
    expect(names({ max_price: "0.1" })).toEqual(["spark", "whisper"]);
    expect(names({ min_context: "4096" })).toEqual(["llama"]);
  });
});
