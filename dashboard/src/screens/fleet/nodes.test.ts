import { describe, expect, it } from "vitest";
import { filterNodes, memoryOf, mergeNodes, totalsOf, type FleetNode } from "./nodes";

function node(nodeId: string, fields: Partial<FleetNode> = {}): FleetNode {
  return {
    node_id: nodeId,
    pop: "FRA",
    state: "ready",
    is_reachable: true,
    device: "cuda",
    device_name: "H200",
    memory_bytes: 100,
    weight_bytes: 40,
    kv_bytes: 50,
    kv_free_ratio: 0.8,
    version: "1.0",
    started_at: null,
    num_calls: 0,
    queued_tokens: 5,
    cache_hit_ratio: null,
    replicas: [],
    ...fields,
  };
}

describe("mergeNodes", () => {
  it("replaces changed nodes in place, adds new nodes and keeps the other objects", () => {
    const [a, b] = [node("a"), node("b")];
    const changed = [node("c"), node("b", { state: "draining" })];
    const merged = mergeNodes([a, b], changed);
    expect(merged.map((each) => each.node_id)).toEqual(["a", "b", "c"]);
    expect(merged[0]).toBe(a);
    expect(merged[1]?.state).toBe("draining");
  });
});

describe("memoryOf", () => {
  it("splits memory into weights, used and free KV, and the rest", () => {
    expect(memoryOf(node("a"))).toEqual({ weights: 40, kvUsed: 10, kvFree: 40, free: 10, total: 100 });
  });
});

describe("totalsOf and filterNodes", () => {
  it("leave nodes that are gone out of the sums and find nodes by state", () => {
    const nodes = [node("a"), node("b", { state: "gone" })];
    expect(totalsOf(nodes)).toMatchObject({ numReady: 1, numGone: 1, memoryBytes: 100, queuedTokens: 5 });
    const filters = { search: "h200", pop: "FRA", state: "gone", model: "" };
    expect(filterNodes(nodes, filters).map((each) => each.node_id)).toEqual(["b"]);
  });
});
