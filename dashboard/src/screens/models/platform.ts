/** Platform routes of models: a model's page, publications, aliases, deprecations, access of accounts. */

import { useQuery } from "@tanstack/react-query";
import { client, page, result } from "@/api/client";
import type { components } from "@/api/schema";

export type ModelDetails = components["schemas"]["ModelPage"];
export type Publication = components["schemas"]["ModelPublication"];
export type Alias = components["schemas"]["Alias"];

const BUSY_POLL_MS = 1_000;
const IDLE_POLL_MS = 15_000;

export function useModelDetails(name: string) {
  return useQuery({
    queryKey: ["model details", name],
    queryFn: () => result<ModelDetails>(client.GET("/client/v4/models/{model}", { params: { path: { model: name } } })),
    refetchInterval: 5_000,
  });
}

export function isOpen(publication: Publication): boolean {
  return publication.state === "queued" || publication.state === "running";
}

/** Return the publications, refreshed every second while one of them is not over. */
export function usePublications(number: number) {
  return useQuery({
    queryKey: ["publications", number],
    queryFn: () => page<Publication>(client.GET("/client/v4/publications", { params: { query: { page: number, per_page: 20 } } })),
    refetchInterval: (query) => (query.state.data?.items.some(isOpen) ? BUSY_POLL_MS : IDLE_POLL_MS),
    placeholderData: (before) => before,
  });
}

export function useAliases() {
  return useQuery({
    queryKey: ["aliases"],
    queryFn: async () => (await page<Alias>(client.GET("/client/v4/aliases", { params: { query: { per_page: 1000 } } }))).items,
  });
}
