/** Batches, webhook deliveries and the webhook key of an account. */

import { useQuery } from "@tanstack/react-query";
import { client, page, result } from "@/api/client";
import { ApiError } from "@/api/errors";
import type { components } from "@/api/schema";

export type Batch = components["schemas"]["Batch"];
export type Delivery = components["schemas"]["WebhookDelivery"];
export type WebhookKey = components["schemas"]["WebhookKeyResult"];

const BUSY_POLL_MS = 1_500;
const IDLE_POLL_MS = 10_000;
const PAGE_SIZE = 50;

export function isOpen(batch: Batch): boolean {
  return ["queued", "running", "cancelling"].includes(batch.state);
}

/** Return the account's batches, refreshed often while one of them is not over. */
export function useBatches(accountId: string, number: number) {
  return useQuery({
    queryKey: ["batches", accountId, number],
    queryFn: () => {
      const params = { path: { account_id: accountId }, query: { page: number, per_page: PAGE_SIZE } };
      return page<Batch>(client.GET("/client/v4/accounts/{account_id}/ai/batches", { params }));
    },
    refetchInterval: (query) => (query.state.data?.items.some(isOpen) ? BUSY_POLL_MS : IDLE_POLL_MS),
    placeholderData: (before) => before,
  });
}

export function useDeliveries(accountId: string, number: number) {
  return useQuery({
    queryKey: ["deliveries", accountId, number],
    queryFn: () => {
      const params = { path: { account_id: accountId }, query: { page: number, per_page: PAGE_SIZE } };
      return page<Delivery>(client.GET("/client/v4/accounts/{account_id}/ai/webhooks/deliveries", { params }));
    },
    refetchInterval: IDLE_POLL_MS,
    placeholderData: (before) => before,
  });
}

/** Return the key that signs webhooks, or null if the account has none. */
export function useWebhookKey(accountId: string) {
  return useQuery({
    queryKey: ["webhook key", accountId],
    queryFn: async () => {
      try {
        const params = { path: { account_id: accountId } };
        return await result<WebhookKey>(client.GET("/client/v4/accounts/{account_id}/ai/webhooks/key", { params }));
      } catch (error) {
        if (error instanceof ApiError && error.status === 404) return null;
        throw error;
      }
    },
    retry: false,
  });
}
