/** Calls, tokens and cost over time. */

import { SimpleGrid } from "@mantine/core";
import { useMemo } from "react";
import { Panel } from "@/components/Panel";
import { TimeChart } from "@/components/TimeChart";
import { formatCompact, formatMoney } from "@/lib/format";
import { elapsedOfStep } from "@/lib/time-axis";
import type { MetricSummary } from "./shapes";

const CALLS = [
  { name: "succeeded", label: "Succeeded", color: "teal.6" },
  { name: "failed", label: "Failed", color: "red.6" },
];
const TOKENS = [
  { name: "cached", label: "Prompt, cached", color: "gray.5" },
  { name: "prompt", label: "Prompt", color: "blue.6" },
  { name: "completion", label: "Completion", color: "ember.6" },
];
const COST = [{ name: "usd", label: "Cost", color: "violet.5" }];

export function Charts({ summary }: { summary: MetricSummary }) {
  const points = useMemo(
    () =>
      summary.series.map((point) => {
        const seconds = elapsedOfStep(point.at, summary.step_s, summary.until);
        return {
          at: point.at,
          succeeded: point.calls - point.errors,
          failed: point.errors,
          cached: point.cached_tokens / seconds,
          prompt: Math.max(0, point.prompt_tokens - point.cached_tokens) / seconds,
          completion: point.completion_tokens / seconds,
          usd: point.usd,
        };
      }),
    [summary],
  );
  const step = { 60: "minute", 3600: "hour", 86400: "day" }[summary.step_s] ?? "step";
  return (
    <SimpleGrid cols={{ base: 1, lg: 3 }}>
      <Panel title={`Calls per ${step}`}>
        <TimeChart label={`Calls per ${step}`} data={points} series={CALLS} stepS={summary.step_s} format={formatCompact} kind="bar" />
      </Panel>
      <Panel title="Tokens per second">
        <TimeChart label="Tokens per second" data={points} series={TOKENS} stepS={summary.step_s} format={formatCompact} />
      </Panel>
      <Panel title={`Cost per ${step}`}>
        <TimeChart label={`Cost per ${step}`} data={points} series={COST} stepS={summary.step_s} format={formatMoney} />
      </Panel>
    </SimpleGrid>
  );
}
