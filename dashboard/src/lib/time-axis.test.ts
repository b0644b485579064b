import { describe, expect, it } from "vitest";
import { elapsedOfStep } from "./time-axis";

describe("elapsedOfStep", () => {
  it("is the whole step for steps in the past", () => {
    expect(elapsedOfStep("2026-01-01T00:00:00Z", 60, "2026-01-01T00:30:00Z")).toBe(60);
  });
  it("is the part that has passed for the last step", () => {
    expect(elapsedOfStep("2026-01-01T00:00:00Z", 60, "2026-01-01T00:00:15Z")).toBe(15);
    expect(elapsedOfStep("2026-01-01T00:00:00Z", 60, "2026-01-01T00:00:00Z")).toBe(1);
  });
});
