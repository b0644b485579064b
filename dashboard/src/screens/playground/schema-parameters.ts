/** Turns the JSON Schema of a model's input into a list of parameters for a form. Pure. */

export interface Schema {
  type?: string | string[];
  title?: string;
  description?: string;
  enum?: unknown[];
  default?: unknown;
  minimum?: number;
  maximum?: number;
  required?: string[];
  properties?: Record<string, Schema>;
  items?: Schema;
  oneOf?: Schema[];
}

export type ParameterKind = "slider" | "number" | "integer" | "boolean" | "choice" | "text" | "list" | "json";

export interface Parameter {
  name: string;
  label: string;
  kind: ParameterKind;
  description?: string;
  minimum?: number;
  maximum?: number;
  step?: number;
  choices?: string[];
  default?: unknown;
  isRequired: boolean;
}

export type Values = Record<string, unknown>;

const MAX_SLIDER_SPAN = 10;

/** Return the variant of the input that has this property, or the input itself if it has no variants. */
export function variantWith(input: Schema, property: string): Schema | null {
  const variants = input.oneOf ?? [input];
  return variants.find((variant) => variant.properties?.[property] !== undefined) ?? null;
}

/** Return the parameters of a variant in the schema's order, without `hidden` names. */
export function parametersOf(variant: Schema, hidden: ReadonlySet<string> = new Set()): Parameter[] {
  const required = new Set(variant.required ?? []);
  return Object.entries(variant.properties ?? {})
    .filter(([name]) => !hidden.has(name))
    .map(([name, schema]) => ({
      name,
      label: schema.title ?? labelOf(name),
      kind: kindOf(schema),
      isRequired: required.has(name),
      ...(schema.description === undefined ? {} : { description: schema.description }),
      ...(schema.minimum === undefined ? {} : { minimum: schema.minimum }),
      ...(schema.maximum === undefined ? {} : { maximum: schema.maximum }),
      ...(kindOf(schema) === "slider" ? { step: 0.05 } : {}),
      ...(schema.enum === undefined ? {} : { choices: schema.enum.map(String) }),
      ...(schema.default === undefined ? {} : { default: schema.default }),
    }));
}

function kindOf(schema: Schema): ParameterKind {
  const types = new Set([schema.type ?? []].flat());
  if (schema.enum) return "choice";
  if (types.has("array") && schema.items && [schema.items.type].flat().every(isScalar)) return "list";
  if (types.has("object") || types.has("array")) return "json";
  if (types.has("boolean")) return "boolean";
  if (types.has("integer")) return "integer";
  if (types.has("number")) return isSlider(schema) ? "slider" : "number";
  return types.has("string") ? "text" : "json";
}

function isScalar(type: string | undefined): boolean {
  return type === "string" || type === "integer" || type === "number";
}

function isSlider(schema: Schema): boolean {
  const { minimum, maximum } = schema;
  return minimum !== undefined && maximum !== undefined && maximum - minimum <= MAX_SLIDER_SPAN;
}

function labelOf(name: string): string {
  const words = name.replaceAll("_", " ");
  return words.charAt(0).toUpperCase() + words.slice(1);
}

/** Return the error in a value, or null. A missing value of an optional parameter is valid. */
export function errorOf(parameter: Parameter, value: unknown): string | null {
  if (value === undefined || value === "") return parameter.isRequired ? `${parameter.label} is required.` : null;
  if (parameter.kind === "json" && typeof value === "string") return jsonError(value);
  if (typeof value !== "number") return null;
  const { minimum, maximum } = parameter;
  if (minimum !== undefined && value < minimum) return `Must be at least ${minimum}.`;
  if (maximum !== undefined && value > maximum) return `Must be at most ${maximum}.`;
  return parameter.kind === "integer" && !Number.isInteger(value) ? "Must be a whole number." : null;
}

/** Return the error in a JSON text, or null. */
export function jsonError(text: string): string | null {
  try {
    JSON.parse(text);
    return null;
  } catch (error) {
    return error instanceof Error ? error.message : String(error);
  }
}

/** Return the fields of a request body: values that the user set and that are valid. */
export function bodyOf(parameters: Parameter[], values: Values): Values {
  const body: Values = {};
  for (const parameter of parameters) {
    const value = values[parameter.name];
    if (value === undefined || value === "" || errorOf(parameter, value) !== null) continue;
    if (parameter.kind === "json" && typeof value === "string") body[parameter.name] = JSON.parse(value) as unknown;
    else if (parameter.kind === "list" && Array.isArray(value)) {
      if (value.length > 0) body[parameter.name] = value;
    } else body[parameter.name] = value;
  }
  return body;
}
