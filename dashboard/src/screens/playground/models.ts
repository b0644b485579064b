/** The models that a panel offers, and the one that the query string chooses. */

import { useMemo } from "react";
import { useSearchParams } from "react-router";
import { replaceInQuery } from "@/lib/query-state";
import { type CatalogModel, contextOf } from "@/screens/models/catalog-filters";
import { useCallableNames, useCatalog } from "@/screens/models/catalog";

export interface OfferedModels {
  models: CatalogModel[];
  isPending: boolean;
  error: unknown;
  refetch: () => void;
}

/** Return the models of a task that can be called, those with the largest context first. */
export function useOfferedModels(task: string): OfferedModels {
  const catalog = useCatalog();
  const callable = useCallableNames();
  const models = useMemo(
    () =>
      (catalog.data ?? [])
        .filter((model) => model.task.name === task && callable.data?.has(model.name))
        .sort((a, b) => (contextOf(b) ?? 0) - (contextOf(a) ?? 0)),
    [catalog.data, callable.data, task],
  );
  return {
    models,
    isPending: catalog.isPending || callable.isPending,
    error: catalog.error ?? callable.error,
    refetch: () => void Promise.all([catalog.refetch(), callable.refetch()]),
  };
}

/** Return the model that a query parameter names and a function that changes it; the first model by default. */
export function useChosenModel(
  parameter: string,
  models: CatalogModel[],
  hasDefault = true,
): [CatalogModel | null, (name: string | null) => void] {
  const [query, setQuery] = useSearchParams();
  const name = query.get(parameter);
  const found = models.find((model) => model.name === name) ?? (hasDefault ? models[0] : undefined) ?? null;
  const choose = (next: string | null) =>
    setQuery((before) => replaceInQuery(before, { [parameter]: next }), { replace: true });
  return [found, choose];
}
