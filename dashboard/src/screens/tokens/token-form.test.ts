import { describe, expect, it } from "vitest";
import type { ApiToken } from "./shapes";
import { bodyOf, EMPTY, valuesOf } from "./token-form";

const TOKEN: ApiToken = {
  id: "t",
  name: "ci",
  status: "active",
  issued_on: "2026-01-01T00:00:00Z",
  modified_on: "2026-01-01T00:00:00Z",
  expires_on: "2027-01-01T00:00:00Z",
  policies: [{ effect: "allow", permission_groups: [{ id: "g", name: "G" }], resources: { "com.cloudflare.api.account.a": "*" } }],
  models: ["@cf/x/y"],
  limits: "token=1/60",
  region: { countries: ["DE"] },
  condition: { request_ip: { in: ["10.0.0.0/8"] } },
};

describe("bodyOf", () => {
  it("returns what was read if nothing was changed", () => {
    expect(bodyOf(valuesOf(TOKEN), "a", TOKEN)).toEqual({
      name: "ci",
      policies: [{ effect: "allow", permission_groups: [{ id: "g" }], resources: { "com.cloudflare.api.account.a": "*" } }],
      status: "active",
      condition: { request_ip: { in: ["10.0.0.0/8"], not_in: [] } },
      not_before: null,
      expires_on: "2027-01-01T00:00:00.000Z",
      models: ["@cf/x/y"],
      limits: "token=1/60",
      region: { countries: ["DE"] },
    });
  });
  it("keeps policies that the form cannot show", () => {
    const denied = { effect: "deny" as const, permission_groups: [{ id: "h", name: "H" }], resources: {} };
    const before = { ...TOKEN, policies: [...TOKEN.policies, denied] };
    expect(bodyOf({ ...valuesOf(before), groups: ["other"] }, "a", before).policies).toHaveLength(2);
  });
  it("allows all models unless models are selected", () => {
    expect(bodyOf({ ...EMPTY, name: "n", groups: ["g"] }, "a").models).toBeNull();
  });
});
