/** The models of the catalog as the search route returns them, and filters over them. Pure. */

export interface Price {
  unit: string;
  price: number;
  currency: string;
}

export interface CatalogModel {
  id: string;
  name: string;
  description: string;
  task: { id: string; name: string; description: string };
  created_at: string;
  properties: { property_id: string; value: unknown }[];
}

/** Properties of a model that are either true or missing. */
export const CAPABILITIES: Record<string, string> = {
  function_calling: "Tools",
  reasoning: "Reasoning",
  vision: "Vision",
  lora: "Adapters",
  async_queue: "Batches",
  realtime: "Realtime",
  beta: "Beta",
};

/** Return a property of a model, or undefined. */
export function propertyOf(model: CatalogModel, name: string): unknown {
  return model.properties.find((each) => each.property_id === name)?.value;
}

export function hasCapability(model: CatalogModel, name: string): boolean {
  return propertyOf(model, name) === "true";
}

/** Return the context window in tokens, or null. */
export function contextOf(model: CatalogModel): number | null {
  const value = Number(propertyOf(model, "context_window") ?? propertyOf(model, "max_input_tokens"));
  return Number.isFinite(value) && value > 0 ? value : null;
}

export function pricesOf(model: CatalogModel): Price[] {
  const value = propertyOf(model, "price");
  return Array.isArray(value) ? (value as Price[]) : [];
}

/** Return the price of a million input or output tokens in US dollars, or null if the model has another unit. */
export function tokenPrice(model: CatalogModel, kind: "input" | "output"): number | null {
  return pricesOf(model).find((price) => price.unit === `per M ${kind} tokens`)?.price ?? null;
}

/** Return the price that the catalog sorts and filters by: of input tokens, or the first one; 0 for a free model. */
export function leadingPrice(model: CatalogModel): number {
  return tokenPrice(model, "input") ?? pricesOf(model)[0]?.price ?? 0;
}

/** Return the author: the middle part of `@cf/author/name`. */
export function authorOf(name: string): string {
  return name.split("/")[1] ?? "";
}

/** Return the time after which the model is refused, or null. */
export function deprecationOf(model: CatalogModel): string | null {
  const value = propertyOf(model, "planned_deprecation_date");
  return typeof value === "string" ? value : null;
}

export interface CatalogFilters {
  search: string;
  task: string;
  author: string;
  /** Comma-separated capabilities, all of which a model must have. */
  capabilities: string;
  /** Highest leading price in US dollars, as text. */
  max_price: string;
  /** Smallest context window in tokens, as text. */
  min_context: string;
}

/** Return the models that match all filters. */
export function filterModels(models: CatalogModel[], filters: CatalogFilters): CatalogModel[] {
  const words = filters.search.trim().toLowerCase().split(/\s+/).filter(Boolean);
  const capabilities = filters.capabilities.split(",").filter(Boolean);
  const maxPrice = filters.max_price === "" ? Infinity : Number(filters.max_price);
  const minContext = filters.min_context === "" ? 0 : Number(filters.min_context);
  return models.filter((model) => {
    const text = `${model.name} ${model.description} ${model.task.name}`.toLowerCase();
    return (
      words.every((word) => text.includes(word)) &&
      (filters.task === "" || model.task.name === filters.task) &&
      (filters.author === "" || authorOf(model.name) === filters.author) &&
      capabilities.every((name) => hasCapability(model, name)) &&
      leadingPrice(model) <= maxPrice &&
      (minContext === 0 || (contextOf(model) ?? 0) >= minContext)
    );
  });
}
