/** Tools that a chat offers to the model, and the conversion between a list of fields and a JSON Schema. Pure. */

export interface Tool {
  name: string;
  description: string;
  parameters: Record<string, unknown>;
}

export interface ToolField {
  name: string;
  type: string;
  description: string;
  isRequired: boolean;
}

export const FIELD_TYPES = ["string", "number", "integer", "boolean", "array", "object"];
export const TOOL_NAME = /^[A-Za-z0-9_.:/-]{1,128}$/;

export const EXAMPLE_TOOL: Tool = {
  name: "get_weather",
  description: "Get the weather in a city",
  parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
};

/** Return the tools as the `tools` field of a chat request. */
export function toolsField(tools: Tool[]): unknown[] {
  return tools.map((tool) => ({ type: "function", function: tool }));
}

/** Return the fields of a schema, or null if a list of fields cannot express it. */
export function fieldsOf(parameters: Record<string, unknown>): ToolField[] | null {
  const known = new Set(["type", "properties", "required"]);
  if (Object.keys(parameters).some((key) => !known.has(key))) return null;
  const required = Array.isArray(parameters.required) ? (parameters.required as unknown[]) : [];
  const fields: ToolField[] = [];
  for (const [name, value] of Object.entries((parameters.properties ?? {}) as Record<string, unknown>)) {
    const { type, description = "", ...rest } = value as Record<string, unknown>;
    if (typeof type !== "string" || typeof description !== "string" || Object.keys(rest).length > 0) return null;
    fields.push({ name, type, description, isRequired: required.includes(name) });
  }
  return fields;
}

/** Return the JSON Schema of a list of fields. Fields without a name are left out. */
export function schemaOf(fields: ToolField[]): Record<string, unknown> {
  const named = fields.filter((field) => field.name !== "");
  return {
    type: "object",
    properties: Object.fromEntries(
      named.map(({ name, type, description }) => [name, description === "" ? { type } : { type, description }]),
    ),
    required: named.filter((field) => field.isRequired).map((field) => field.name),
  };
}
