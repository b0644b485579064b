/** Queries of the model catalog, shared by all screens that offer models. Every signed-in person may read it. */

import { useQuery } from "@tanstack/react-query";
import { client, page, result } from "@/api/client";
import type { Schema } from "@/screens/playground/schema-parameters";
import type { CatalogModel } from "./catalog-filters";

async function search(query: { include_deprecated?: boolean; installed?: boolean }): Promise<CatalogModel[]> {
  return (await page<CatalogModel>(client.GET("/client/v4/models", { params: { query } }))).items;
}

/** Return the whole catalog. It is small (one page), so screens filter without further requests. */
export function useCatalog(includeDeprecated = false) {
  return useQuery({
    queryKey: ["catalog", includeDeprecated],
    queryFn: () => search({ include_deprecated: includeDeprecated }),
    staleTime: 60_000,
  });
}

/** Return the names of the models whose weights are installed, so that they can be called. */
export function useCallableNames() {
  return useQuery({
    queryKey: ["callable models"],
    queryFn: async () => new Set((await search({ installed: true })).map((model) => model.name)),
    staleTime: 60_000,
  });
}

export interface SchemaDocument {
  input: Schema;
  output: Schema;
}

/** Return the JSON Schemas of a model's input and output. */
export function useModelSchema(model: string | null) {
  return useQuery({
    queryKey: ["model schema", model],
    queryFn: () => result<SchemaDocument>(client.GET("/client/v4/models/schema", { params: { query: { model: model ?? "" } } })),
    enabled: !!model,
    staleTime: 300_000,
  });
}
