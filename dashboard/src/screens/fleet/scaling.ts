/** Queries and changes of autoscaling. */

import { useQuery, useQueryClient } from "@tanstack/react-query";
import { client, result } from "@/api/client";

export interface Target {
  model: string;
  pop: string;
  num_replicas: number;
  num_current: number;
  tokens_per_s: number;
  reason: string;
}

export interface Change {
  action: string;
  model: string;
  node_id: string;
  pop: string;
  reason: string;
}

export interface Unplaced {
  model: string;
  pop: string;
  num_replicas: number;
  reason: string;
}

export interface Plan {
  is_on: boolean;
  holder: string | null;
  applied_at: string | null;
  targets: Target[];
  changes: Change[];
  unplaced: Unplaced[];
}

export interface Override {
  model: string;
  pop: string | null;
  min_replicas: number;
  max_replicas: number | null;
  is_pinned: boolean;
}

export interface Reservation {
  account_id: string;
  model: string;
  pop: string;
  tokens_per_s: number;
}

export interface Difference {
  model: string;
  pop: string;
  num_before: number;
  num_after: number;
  reason: string;
}

export interface WhatIf {
  differences: Difference[];
  unplaced: Unplaced[];
}

const PLAN = ["scaling", "plan"];
const OVERRIDES = ["scaling", "overrides"];
const RESERVED = ["scaling", "reserved"];
const REFRESH_MS = 10_000;

export function usePlan() {
  return useQuery({
    queryKey: PLAN,
    queryFn: () => result<Plan>(client.GET("/client/v4/scaling/plan")),
    refetchInterval: REFRESH_MS,
  });
}

export function useOverrides() {
  return useQuery({
    queryKey: OVERRIDES,
    queryFn: () => result<Override[]>(client.GET("/client/v4/scaling/overrides")),
  });
}

export function useReservations() {
  return useQuery({
    queryKey: RESERVED,
    queryFn: () => result<Reservation[]>(client.GET("/client/v4/scaling/reserved_capacity")),
  });
}

/** Return functions that change the rules; the plan is read again after each. */
export function useRuleChanges() {
  const queries = useQueryClient();
  const refresh = () => queries.invalidateQueries({ queryKey: ["scaling"] });
  return {
    setOverride: async ({ model, ...body }: Override) => {
      await client.PUT("/client/v4/scaling/overrides/{model}", { params: { path: { model } }, body });
      await refresh();
    },
    removeOverride: async ({ model, pop }: Override) => {
      const query = pop === null ? {} : { pop };
      await client.DELETE("/client/v4/scaling/overrides/{model}", { params: { path: { model }, query } });
      await refresh();
    },
    reserve: async ({ account_id, model, ...body }: Reservation) => {
      const params = { path: { account_id, model } };
      await client.PUT("/client/v4/accounts/{account_id}/ai/reserved_capacity/{model}", { params, body });
      await refresh();
    },
    release: async ({ account_id, model, pop }: Reservation) => {
      const params = { path: { account_id, model }, query: { pop } };
      await client.DELETE("/client/v4/accounts/{account_id}/ai/reserved_capacity/{model}", { params });
      await refresh();
    },
  };
}

/** Return how the plan changes if a PoP is lost or added. */
export function compareWithoutPop(pop: string): Promise<WhatIf> {
  return result<WhatIf>(client.GET("/client/v4/scaling/what_if", { params: { query: { lose: pop } } }));
}

export function compareWithPop(pop: string, nodes: number): Promise<WhatIf> {
  return result<WhatIf>(client.GET("/client/v4/scaling/what_if", { params: { query: { add: pop, nodes } } }));
}
