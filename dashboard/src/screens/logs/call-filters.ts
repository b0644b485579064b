/** Filters of the list of calls. Pure. */

export interface CallFilters {
  model: string;
  status: string;
  task: string;
  pop: string;
  api_token_id: string;
  /** Shortest total time in milliseconds, as text. */
  min_duration_ms: string;
}

/** The statuses of calls that ended as the client wanted. */
export const FINISHED = new Set(["stop", "length", "tool_calls"]);

export const STATUSES = [
  "stop",
  "length",
  "tool_calls",
  "aborted",
  "client_left",
  "constraint_failed",
  "context_too_long",
  "draining",
  "internal",
  "invalid_input",
  "model_unavailable",
  "out_of_capacity",
  "timeout",
];

interface FilteredCall {
  model: string;
  status: string;
  task: string;
  pop: string;
  api_token_id: string;
  duration_ms: number;
}

/** Return True if a call matches all filters, as the gateway's list would select it. */
export function matches(call: FilteredCall, filters: CallFilters): boolean {
  return (
    (["model", "status", "task", "pop", "api_token_id"] as const).every(
      (name) => filters[name] === "" || filters[name] === call[name],
    ) && !(Number(filters.min_duration_ms) > call.duration_ms)
  );
}

/** Return new calls in front of older ones, without repetitions, at most `max`. */
export function prepend<T extends { request_id: string }>(calls: T[], older: T[], max: number): T[] {
  const ids = new Set<string>();
  const joined = [...calls, ...older].filter((call) => {
    if (ids.has(call.request_id)) return false;
    ids.add(call.request_id);
    return true;
  });
  return joined.slice(0, max);
}
