/** Calls of one account, or of all accounts for platform roles. */

import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { client, result } from "@/api/client";
import type { components } from "@/api/schema";
import { type CallFilters, matches } from "./call-filters";

export type Call = components["schemas"]["UsageCall"];
export type Timeline = components["schemas"]["CallTimeline"];

const PAGE_SIZE = 100;

/** Return calls, newest first, in pages that continue after the last call of the page before. */
export function useCalls(accountId: string | null, filters: CallFilters) {
  return useInfiniteQuery({
    queryKey: ["calls", accountId, filters],
    queryFn: ({ pageParam }) => {
      const query = { limit: PAGE_SIZE, ...queryOf(filters), ...(pageParam ? { before: pageParam } : {}) };
      return result<Call[]>(
        accountId === null
          ? client.GET("/client/v4/usage/calls", { params: { query } })
          : client.GET("/client/v4/accounts/{account_id}/ai/usage/calls", {
              params: { path: { account_id: accountId }, query },
            }),
      );
    },
    initialPageParam: "",
    getNextPageParam: (page: Call[]) => (page.length < PAGE_SIZE ? null : (page.at(-1)?.request_id ?? null)),
    staleTime: 5_000,
  });
}

/** Return the query parameters of the filters: only those that are set. */
function queryOf(filters: CallFilters): Record<string, string | number> {
  const { min_duration_ms: slow, ...texts } = filters;
  const set = Object.entries(texts).filter(([, value]) => value !== "");
  return { ...Object.fromEntries(set), ...(Number(slow) > 0 ? { min_duration_ms: Number(slow) } : {}) };
}

export function useCall(accountId: string, requestId: string) {
  return useQuery({
    queryKey: ["call", accountId, requestId],
    queryFn: () => {
      const params = { path: { account_id: accountId, request_id: requestId } };
      return result<Timeline>(client.GET("/client/v4/accounts/{account_id}/ai/usage/calls/{request_id}", { params }));
    },
  });
}

export interface ApiTokenName {
  id: string;
  name: string;
}

/** Return the account's API tokens by name, for filters; none if the user may not list them. */
export function useTokenNames(accountId: string | null) {
  return useQuery({
    queryKey: ["token names", accountId],
    queryFn: () =>
      result<ApiTokenName[]>(
        client.GET("/client/v4/accounts/{account_id}/tokens", {
          params: { path: { account_id: accountId ?? "" }, query: { per_page: 1000 } },
        }),
      ),
    enabled: accountId !== null,
    retry: false,
    staleTime: 60_000,
  });
}

/** Return the calls of an event that belong to the account and match the filters. */
export function matchingCalls(data: unknown, accountId: string | null, filters: CallFilters): Call[] {
  return (data as Call[]).filter((call) => (accountId === null || call.account_id === accountId) && matches(call, filters));
}
