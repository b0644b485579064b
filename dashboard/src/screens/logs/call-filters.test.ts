import { describe, expect, it } from "vitest";
import { matches, prepend } from "./call-filters";

const CALL = { model: "@cf/a/b", status: "stop", task: "Text Generation", pop: "FRA", api_token_id: "t", duration_ms: 80 };
const NONE = { model: "", status: "", task: "", pop: "", api_token_id: "", min_duration_ms: "" };

describe("matches", () => {
  it("requires every filter that is set", () => {
    expect(matches(CALL, NONE)).toBe(true);
    expect(matches(CALL, { ...NONE, model: "@cf/a/b", pop: "FRA", min_duration_ms: "80" })).toBe(true);
    expect(matches(CALL, { ...NONE, status: "timeout" })).toBe(false);
    expect(matches(CALL, { ...NONE, min_duration_ms: "81" })).toBe(false);
  });
});

describe("prepend", () => {
  it("keeps each call once, the newest first, up to a limit", () => {
    const call = (request_id: string) => ({ request_id });
    const ids = prepend([call("c"), call("b")], [call("b"), call("a")], 2).map((each) => each.request_id);
    expect(ids).toEqual(["c", "b"]);
  });
});
