/** Nodes, replicas and PoPs as `GET /nodes` and `GET /pops` return them, and sums over them. Pure. */

export type NodeState = "ready" | "draining" | "gone";
export type ReplicaState = "cold" | "loading" | "ready" | "idle" | "sleeping" | "evicted" | "draining" | "failed";

export interface Replica {
  model: string;
  revision: string;
  state: ReplicaState;
  num_running: number;
  num_waiting: number;
  queued_tokens: number;
  num_blocks: number;
  num_free_blocks: number;
  num_cached_blocks: number;
  busy_ratio: number;
  cache_hit_ratio: number | null;
  weight_bytes: number;
  kv_bytes: number;
  /** A pinned model is never evicted. */
  is_pinned: boolean;
  detail: string;
}

export interface FleetNode {
  node_id: string;
  pop: string;
  state: NodeState;
  /** The gateway that responds is connected to the node. */
  is_reachable: boolean;
  device: string;
  device_name: string;
  memory_bytes: number;
  weight_bytes: number;
  kv_bytes: number;
  kv_free_ratio: number | null;
  version: string;
  started_at: string | null;
  num_calls: number;
  queued_tokens: number;
  cache_hit_ratio: number | null;
  replicas: Replica[];
}

export interface Pop {
  pop: string;
  city: string | null;
  country: string | null;
  latitude: number | null;
  longitude: number | null;
  jurisdictions: string[];
  num_nodes: number;
}

/** Return the nodes with changed ones replaced and new ones added. Unchanged nodes stay the same objects. */
export function mergeNodes(nodes: FleetNode[], changed: FleetNode[]): FleetNode[] {
  const byId = new Map(changed.map((node) => [node.node_id, node]));
  const merged = nodes.map((node) => {
    const replacement = byId.get(node.node_id);
    byId.delete(node.node_id);
    return replacement ?? node;
  });
  return byId.size === 0 ? merged : [...merged, ...byId.values()];
}

export interface FleetTotals {
  numReady: number;
  numDraining: number;
  numGone: number;
  numReplicas: number;
  numReadyReplicas: number;
  numRunning: number;
  numWaiting: number;
  queuedTokens: number;
  memoryBytes: number;
  usedBytes: number;
}

/** Return the sums over nodes. The memory of nodes that are gone is not counted. */
export function totalsOf(nodes: FleetNode[]): FleetTotals {
  const totals: FleetTotals = {
    numReady: 0,
    numDraining: 0,
    numGone: 0,
    numReplicas: 0,
    numReadyReplicas: 0,
    numRunning: 0,
    numWaiting: 0,
    queuedTokens: 0,
    memoryBytes: 0,
    usedBytes: 0,
  };
  for (const node of nodes) {
    if (node.state === "gone") {
      totals.numGone += 1;
      continue;
    }
    if (node.state === "ready") totals.numReady += 1;
    else totals.numDraining += 1;
    const memory = memoryOf(node);
    totals.memoryBytes += memory.total;
    totals.usedBytes += memory.weights + memory.kvUsed;
    totals.queuedTokens += node.queued_tokens;
    for (const replica of node.replicas) {
      totals.numReplicas += 1;
      if (replica.state === "ready" || replica.state === "idle") totals.numReadyReplicas += 1;
      totals.numRunning += replica.num_running;
      totals.numWaiting += replica.num_waiting;
    }
  }
  return totals;
}

export interface Memory {
  weights: number;
  kvUsed: number;
  kvFree: number;
  free: number;
  total: number;
}

/** Return how a node's device memory is used, in bytes. */
export function memoryOf(node: FleetNode): Memory {
  const kvFree = node.kv_bytes * Math.min(1, Math.max(0, node.kv_free_ratio ?? 0));
  const total = Math.max(node.memory_bytes, node.weight_bytes + node.kv_bytes);
  return {
    weights: node.weight_bytes,
    kvUsed: node.kv_bytes - kvFree,
    kvFree,
    free: Math.max(0, total - node.weight_bytes - node.kv_bytes),
    total,
  };
}

/** Return the numbers of running and waiting rows of a node. */
export function rowsOf(node: FleetNode): { running: number; waiting: number } {
  let running = 0;
  let waiting = 0;
  for (const replica of node.replicas) {
    running += replica.num_running;
    waiting += replica.num_waiting;
  }
  return { running, waiting };
}

export interface NodeFilters {
  search: string;
  pop: string;
  state: string;
  model: string;
}

/** Return the nodes that match all filters. `search` is compared with ids, devices, versions and models. */
export function filterNodes(nodes: FleetNode[], filters: NodeFilters): FleetNode[] {
  const words = filters.search.trim().toLowerCase();
  return nodes.filter(
    (node) =>
      (filters.pop === "" || node.pop === filters.pop) &&
      (filters.state === "" || node.state === filters.state) &&
      (filters.model === "" || node.replicas.some((replica) => replica.model === filters.model)) &&
      (words === "" || textOf(node).includes(words)),
  );
}

function textOf(node: FleetNode): string {
  const models = node.replicas.map((replica) => replica.model).join(" ");
  return `${node.node_id} ${node.pop} ${node.device_name} ${node.version} ${models}`.toLowerCase();
}
