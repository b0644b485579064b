/** The figures at the top of the overview. */

import { SimpleGrid } from "@mantine/core";
import { StatCard } from "@/components/StatCard";
import { Money } from "@/components/values";
import { formatCompact, formatDuration, formatNumber, formatPercent } from "@/lib/format";
import { elapsedOfStep } from "@/lib/time-axis";
import type { MetricSummary } from "./shapes";

const STEP_NAMES: Record<number, string> = { 60: "last minute", 3600: "last hour", 86400: "last day" };

interface Rate {
  last: number;
  average: number;
  peak: number;
}

/** Return rates per second. `last` is that of the last step of which at least half has passed. */
function ratesOf(summary: MetricSummary, count: (point: MetricSummary["series"][number]) => number): Rate {
  const rates = summary.series
    .map((point) => ({ count: count(point), seconds: elapsedOfStep(point.at, summary.step_s, summary.until) }))
    .filter(({ seconds }) => seconds >= summary.step_s / 2)
    .map((step) => step.count / step.seconds);
  const seconds = Math.max(1, (Date.parse(summary.until) - Date.parse(summary.since)) / 1000);
  const total = summary.series.reduce((sum, point) => sum + count(point), 0);
  return { last: rates.at(-1) ?? 0, average: total / seconds, peak: Math.max(0, ...rates) };
}

function rateText(rate: Rate): string {
  return `average ${formatCompact(rate.average)} · peak ${formatCompact(rate.peak)}`;
}

export function Stats({ summary }: { summary: MetricSummary | undefined }) {
  const isLoading = summary === undefined;
  const calls = summary && ratesOf(summary, (point) => point.calls);
  const tokens = summary && ratesOf(summary, (point) => point.prompt_tokens + point.completion_tokens);
  const step = STEP_NAMES[summary?.step_s ?? 60] ?? "last step";
  const totals = summary?.totals;
  const ttft = summary?.latency.ttft_ms;
  const total = summary?.latency.total_ms;
  return (
    <SimpleGrid cols={{ base: 2, md: 4 }} spacing="sm">
      <StatCard
        label={`Calls per second, ${step}`}
        isLoading={isLoading}
        value={calls && formatCompact(calls.last)}
        detail={calls && rateText(calls)}
      />
      <StatCard
        label={`Tokens per second, ${step}`}
        isLoading={isLoading}
        value={tokens && formatCompact(tokens.last)}
        detail={tokens && rateText(tokens)}
      />
      <StatCard
        label="Time to first token, P50"
        isLoading={isLoading}
        value={ttft ? formatDuration(ttft.p50 / 1000) : "–"}
        detail={ttft ? `P95 ${formatDuration(ttft.p95 / 1000)}` : "no calls"}
      />
      <StatCard
        label="Total latency, P50"
        isLoading={isLoading}
        value={total ? formatDuration(total.p50 / 1000) : "–"}
        detail={total ? `P95 ${formatDuration(total.p95 / 1000)}` : "no calls"}
      />
      <StatCard
        label="Errors"
        isLoading={isLoading}
        value={totals && formatPercent(totals.calls ? totals.errors / totals.calls : 0)}
        detail={totals && `${formatNumber(totals.errors)} of ${formatNumber(totals.calls)} calls`}
      />
      <StatCard
        label="Prompt tokens from the cache"
        isLoading={isLoading}
        value={totals && formatPercent(totals.prompt_tokens ? totals.cached_tokens / totals.prompt_tokens : 0)}
        detail={totals && `${formatCompact(totals.cached_tokens)} of ${formatCompact(totals.prompt_tokens)} tokens`}
      />
      <StatCard
        label="Cost"
        isLoading={isLoading}
        value={totals && <Money value={totals.usd} />}
        detail={totals && `${formatCompact(totals.neurons)} neurons`}
      />
      <StatCard
        label="Cost per useful response"
        isLoading={isLoading}
        value={totals && <Money value={totals.usd_per_useful} />}
        detail={totals && `${formatNumber(totals.useful)} useful responses`}
      />
    </SimpleGrid>
  );
}
