import { describe, expect, it } from "vitest";
import { EXAMPLE_TOOL, fieldsOf, schemaOf } from "./tool-schema";

describe("fields of a tool", () => {
  it("become a schema and come back", () => {
    const fields = [
      { name: "city", type: "string", description: "Name of the city", isRequired: true },
      { name: "days", type: "integer", description: "", isRequired: false },
    ];
    expect(fieldsOf(schemaOf(fields))).toEqual(fields);
    expect(schemaOf(fieldsOf(EXAMPLE_TOOL.parameters) ?? [])).toEqual(EXAMPLE_TOOL.parameters);
  });

  it("do not exist for a schema that they cannot express", () => {
    expect(fieldsOf({ type: "object", properties: { kind: { type: "string", enum: ["a"] } } })).toBeNull();
    expect(fieldsOf({ oneOf: [] })).toBeNull();
  });
});
