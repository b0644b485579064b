/** Results of the usage routes. */

export interface UsageSum {
  num_calls: number;
  num_useful: number;
  prompt_tokens: number;
  cached_tokens: number;
  completion_tokens: number;
  num_attempts: number;
  neurons: number;
  usd: number;
  device_ms: number;
  usd_per_useful_reply: number | null;
}

export interface UsageSums {
  since: string;
  until: string;
  by: string;
  sums: (UsageSum & Record<string, string | number | null>)[];
}

export interface Amount {
  neurons: number;
  usd: number;
}

export interface Forecast {
  month: string;
  days_left: number;
  used: Amount;
  used_beyond_free: Amount;
  expected: Amount;
  expected_beyond_free: Amount;
}

export interface Budget {
  api_token_id: string | null;
  unit: "neurons" | "usd";
  amount: number;
  refuses: boolean;
  alert_percents: number[];
}

export interface BudgetAlert {
  api_token_id: string | null;
  unit: "neurons" | "usd";
  month: string;
  percent: number;
  amount: number;
  used: number;
  at: string;
}
