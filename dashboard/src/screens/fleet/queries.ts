/** Queries and changes of the fleet. */

import { useQuery, useQueryClient } from "@tanstack/react-query";
import { client, result } from "@/api/client";
import { useLive } from "@/api/events";
import { type FleetNode, mergeNodes, type Pop } from "./nodes";

const NODES = ["nodes"];
const POLL_MS = 3_000; // without the event stream
const REFRESH_MS = 60_000; // nodes that are gone for five minutes leave the list without an event

/** Return all nodes, kept current by events. */
export function useNodes() {
  const queries = useQueryClient();
  const pollMs = useLive(
    "nodes",
    (data) => queries.setQueryData<FleetNode[]>(NODES, (nodes) => nodes && mergeNodes(nodes, data as FleetNode[])),
    POLL_MS,
  );
  return useQuery({
    queryKey: NODES,
    queryFn: () => result<FleetNode[]>(client.GET("/client/v4/nodes")),
    refetchInterval: pollMs || REFRESH_MS,
    // Events replace whole nodes, so a deep comparison of thousands of replicas would find nothing.
    structuralSharing: false,
  });
}

export function usePops() {
  return useQuery({
    queryKey: ["pops"],
    queryFn: () => result<Pop[]>(client.GET("/client/v4/pops")),
    staleTime: 60_000,
  });
}

/** Return functions that change a node; each shows the node's new report at once. */
export function useNodeChanges() {
  const queries = useQueryClient();
  const show = (node: FleetNode) =>
    queries.setQueryData<FleetNode[]>(NODES, (nodes) => nodes && mergeNodes(nodes, [node]));
  const at = (nodeId: string) => ({ params: { path: { node_id: nodeId } } });
  return {
    drain: async (nodeId: string) =>
      show(await result<FleetNode>(client.POST("/client/v4/nodes/{node_id}/drain", at(nodeId)))),
    undrain: async (nodeId: string) =>
      show(await result<FleetNode>(client.POST("/client/v4/nodes/{node_id}/undrain", at(nodeId)))),
    load: async (nodeId: string, model: string) =>
      show(await result<FleetNode>(client.POST("/client/v4/nodes/{node_id}/replicas", { ...at(nodeId), body: { model } }))),
    pin: async (nodeId: string, model: string) =>
      show(await result<FleetNode>(client.POST("/client/v4/nodes/{node_id}/pins", { ...at(nodeId), body: { model } }))),
    unpin: async (nodeId: string, model: string) => {
      const params = { path: { node_id: nodeId, model } };
      show(await result<FleetNode>(client.DELETE("/client/v4/nodes/{node_id}/pins/{model}", { params })));
    },
    unload: async (nodeId: string, model: string) => {
      const params = { path: { node_id: nodeId, model } };
      show(await result<FleetNode>(client.DELETE("/client/v4/nodes/{node_id}/replicas/{model}", { params })));
    },
  };
}

export interface Explanation {
  model: string;
  affinity: string;
  steps: { filter: string; removed: { node_id: string; reason: string }[] }[];
  ranked: {
    node_id: string;
    pop: string;
    tier: number;
    load_tokens: number | null;
    predicted_s: number | null;
    round_trip_ms: number;
    is_hot: boolean;
    reason: string;
  }[];
}

/** Return on which node a call of the account would run now. */
export function explainPlacement(accountId: string, model: string, session: string, prompt: string): Promise<Explanation> {
  const params = { path: { account_id: accountId }, query: { model, session, prompt } };
  return result<Explanation>(client.GET("/client/v4/accounts/{account_id}/ai/placement/explain", { params }));
}
