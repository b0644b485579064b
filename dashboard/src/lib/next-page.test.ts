import { describe, expect, it } from "vitest";
import { nextPage } from "./next-page";

describe("nextPage", () => {
  it("returns paths of the dashboard with their filters", () => {
    expect(nextPage(new URLSearchParams({ next: "/usage?by=token" }))).toBe("/usage?by=token");
  });
  it("refuses other sites and missing paths", () => {
    for (const next of ["", "https://evil.example", "//evil.example", "/\\evil.example", "usage"]) {
      expect(nextPage(new URLSearchParams({ next }))).toBe("/overview");
    }
  });
});
