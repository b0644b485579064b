/** Filters in the query string, so that a link shows the same view. */

import { useCallback } from "react";
import { useSearchParams } from "react-router";

/** Return the query with some parameters replaced; empty values and defaults are removed to keep links short. */
export function replaceInQuery(
  query: URLSearchParams,
  changes: Record<string, string | null | undefined>,
  defaults: Record<string, string> = {},
): URLSearchParams {
  const next = new URLSearchParams(query);
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === undefined || value === "" || value === defaults[name]) next.delete(name);
    else next.set(name, value);
  }
  return next;
}

/**
 * Return the filters of a screen and a function that changes some of them. `defaults` names every filter with its
 * default value; keep it outside the component. Changes replace the history entry unless `isStep` is set.
 */
export function useFilters<T extends Record<string, string>>(
  defaults: T,
): [T, (changes: Partial<Record<keyof T, string | null>>, isStep?: boolean) => void] {
  const [query, setQuery] = useSearchParams();
  const filters = Object.fromEntries(
    Object.entries(defaults).map(([name, value]) => [name, query.get(name) ?? value]),
  ) as T;
  const change = useCallback(
    (changes: Partial<Record<keyof T, string | null>>, isStep = false) =>
      setQuery((before) => replaceInQuery(before, changes as Record<string, string>, defaults), { replace: !isStep }),
    [setQuery, defaults],
  );
  return [filters, change];
}
