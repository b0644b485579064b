/** Chart of values over time: areas or bars, with the local time on the axis. */

import "@mantine/charts/styles.css";

import { AreaChart, BarChart } from "@mantine/charts";
import { Box } from "@mantine/core";
import { formatLocalTime } from "@/lib/format";
import { formatTick } from "@/lib/time-axis";

export interface Series {
  name: string;
  label: string;
  color: string;
}

interface Props {
  /** Says what the chart shows: its accessible name. */
  label: string;
  /** Points with `at` (a time) and a number per series. */
  data: Record<string, string | number | null>[];
  series: Series[];
  stepS: number;
  format: (value: number) => string;
  kind?: "area" | "bar";
  isStacked?: boolean;
  height?: number;
}

export function TimeChart({ label, data, series, stepS, format, kind = "area", isStacked = true, height = 180 }: Props) {
  const common = {
    h: height,
    data,
    dataKey: "at",
    series,
    valueFormatter: format,
    withLegend: series.length > 1,
    legendProps: { verticalAlign: "top" as const, itemSorter: null },
    tickLine: "none" as const,
    gridAxis: "x" as const,
    xAxisProps: { minTickGap: 40, tickFormatter: (at: string) => formatTick(at, stepS) },
    yAxisProps: { width: "auto" as const, tickCount: 4 },
    tooltipAnimationDuration: 0,
    tooltipProps: { labelFormatter: (at: unknown) => formatLocalTime(new Date(String(at))), isAnimationActive: false },
  };
  return (
    <Box role="img" aria-label={label}>
      {kind === "area" ? (
        <AreaChart
          {...common}
          type={isStacked ? "stacked" : "default"}
          withDots={false}
          curveType="linear"
          strokeWidth={1.5}
          fillOpacity={0.25}
          areaProps={{ isAnimationActive: false }}
          areaChartProps={{ accessibilityLayer: false }}
        />
      ) : (
        <BarChart
          {...common}
          type={isStacked ? "stacked" : "default"}
          maxBarWidth={28}
          barProps={{ isAnimationActive: false }}
          barChartProps={{ accessibilityLayer: false }}
        />
      )}
    </Box>
  );
}
