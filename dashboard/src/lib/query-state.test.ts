import { describe, expect, it } from "vitest";
import { replaceInQuery } from "./query-state";

describe("replaceInQuery", () => {
  it("keeps other parameters", () => {
    const query = new URLSearchParams("account=a&status=500");
    expect(replaceInQuery(query, { status: "429" }).toString()).toBe("account=a&status=429");
  });
  it("removes empty values and defaults", () => {
    const query = new URLSearchParams("span=7d&model=m");
    expect(replaceInQuery(query, { span: "1h", model: "" }, { span: "1h" }).toString()).toBe("");
  });
});
