/** Result of `/metrics/summary` and `/accounts/{account_id}/ai/metrics/summary`. */

interface Sums {
  calls: number;
  errors: number;
  useful: number;
  prompt_tokens: number;
  cached_tokens: number;
  completion_tokens: number;
  neurons: number;
  usd: number;
}

export interface Percentiles {
  p50: number;
  p95: number;
  p99: number;
}

export interface Alert {
  account_id: string;
  api_token_id: string | null;
  unit: "neurons" | "usd";
  month: string;
  percent: number;
  amount: number;
  used: number;
  at: string;
}

export interface MetricSummary {
  since: string;
  until: string;
  step_s: number;
  series: (Sums & { at: string })[];
  totals: Sums & { usd_per_useful: number | null };
  latency: { num_calls: number; ttft_ms: Percentiles | null; total_ms: Percentiles | null };
  errors: { status: string; num: number }[];
  ready_models: string[];
  alerts: Alert[];
}
