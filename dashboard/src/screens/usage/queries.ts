import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { client, result } from "@/api/client";
import type { Budget, BudgetAlert, Forecast, UsageSums } from "./shapes";

export const SPANS: Record<string, { label: string; hours: number }> = {
  "24h": { label: "24 hours", hours: 24 },
  "7d": { label: "7 days", hours: 168 },
  "30d": { label: "30 days", hours: 720 },
  "90d": { label: "90 days", hours: 2160 },
};

export const GROUPS = {
  model: "Model",
  token: "API token",
  account: "Account",
  task: "Task",
  pop: "PoP",
  status: "Status",
  day: "Day",
  hour: "Hour",
} as const;
export type Group = keyof typeof GROUPS;

export interface UsageFilters {
  span: string;
  model: string;
  task: string;
  pop: string;
  status: string;
}

/** Return the query parameters of the filters: only those that are set. */
export function filterQuery(filters: UsageFilters): Record<string, string> {
  const hours = SPANS[filters.span]?.hours ?? 168;
  const query: Record<string, string> = { since: new Date(Date.now() - hours * 3_600_000).toISOString() };
  for (const name of ["model", "task", "pop", "status"] as const) if (filters[name]) query[name] = filters[name];
  return query;
}

export function useSums(accountId: string | null, filters: UsageFilters, by: Group) {
  return useQuery({
    queryKey: ["usage", accountId, filters, by],
    queryFn: () => {
      const query = { ...filterQuery(filters), by };
      if (accountId === null) return result<UsageSums>(client.GET("/client/v4/usage", { params: { query } }));
      const params = { path: { account_id: accountId }, query: query as typeof query & { by: Exclude<Group, "account"> } };
      return result<UsageSums>(client.GET("/client/v4/accounts/{account_id}/ai/usage", { params }));
    },
    placeholderData: keepPreviousData,
    refetchInterval: 60_000,
  });
}

export function useForecast(accountId: string) {
  return useQuery({
    queryKey: ["forecast", accountId],
    queryFn: () => {
      const params = { path: { account_id: accountId } };
      return result<Forecast>(client.GET("/client/v4/accounts/{account_id}/ai/usage/forecast", { params }));
    },
    refetchInterval: 60_000,
  });
}

export function useBudgets(accountId: string) {
  return useQuery({
    queryKey: ["budgets", accountId],
    queryFn: () => {
      const params = { path: { account_id: accountId } };
      return result<Budget[]>(client.GET("/client/v4/accounts/{account_id}/ai/usage/budgets", { params }));
    },
  });
}

export function useAlerts(accountId: string) {
  return useQuery({
    queryKey: ["alerts", accountId],
    queryFn: () => {
      const params = { path: { account_id: accountId } };
      return result<BudgetAlert[]>(client.GET("/client/v4/accounts/{account_id}/ai/usage/alerts", { params }));
    },
  });
}
