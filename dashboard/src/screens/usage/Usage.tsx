/** Usage and cost: sums by group, cost over time, forecast, budgets, alerts, CSV export. */

import { Button, Select, SimpleGrid, Stack, Tabs, TextInput } from "@mantine/core";
import { useMemo } from "react";
import { useAccounts, useChosenAccountId } from "@/app/session";
import { type Column, DataTable } from "@/components/DataTable";
import { EmptyState } from "@/components/EmptyState";
import { IconDownload, IconReportMoney } from "@/components/icons";
import { PageHeader } from "@/components/PageHeader";
import { Panel } from "@/components/Panel";
import { StatCard } from "@/components/StatCard";
import { TimeChart } from "@/components/TimeChart";
import { Duration, Money, Name, Num, Percent } from "@/components/values";
import { formatCompact, formatMoney, formatPercent } from "@/lib/format";
import { useFilters } from "@/lib/query-state";
import { useTokens } from "@/screens/tokens/queries";
import { BudgetsPanel } from "./Budgets";
import { ForecastCard } from "./ForecastCard";
import { filterQuery, type Group, GROUPS, SPANS, type UsageFilters, useSums } from "./queries";
import type { UsageSum, UsageSums } from "./shapes";

const DEFAULTS = { view: "usage", by: "model", span: "7d", model: "", task: "", pop: "", status: "" };
const COST = [{ name: "usd", label: "Cost", color: "ember.6" }];
const TOKENS = [
  { name: "cached", label: "Prompt, cached", color: "gray.5" },
  { name: "prompt", label: "Prompt", color: "blue.6" },
  { name: "completion", label: "Completion", color: "ember.6" },
];

export default function Usage() {
  const accountId = useChosenAccountId();
  const [filters, setFilters] = useFilters(DEFAULTS);
  const groups = Object.keys(GROUPS).filter((name) => name !== "account" || accountId === null) as Group[];
  const by = (groups.includes(filters.by as Group) ? filters.by : "model") as Group;
  const isBudgets = filters.view === "budgets" && accountId !== null;
  return (
    <Stack gap="md">
      <PageHeader
        title="Usage and cost"
        description="From the usage ledger, which is up to a second behind. Dollars are neurons at the list price."
        actions={!isBudgets && <ExportButton accountId={accountId} filters={filters} />}
      />
      {accountId !== null && (
        <Tabs value={filters.view} onChange={(view) => setFilters({ view })}>
          <Tabs.List>
            <Tabs.Tab value="usage">Usage</Tabs.Tab>
            <Tabs.Tab value="budgets">Budgets and alerts</Tabs.Tab>
          </Tabs.List>
        </Tabs>
      )}
      {isBudgets ? (
        <BudgetsPanel accountId={accountId} />
      ) : (
        <>
          <FilterBar groups={groups} by={by} filters={filters} onChange={setFilters} />
          <Totals accountId={accountId} filters={filters} />
          <SumTable accountId={accountId} filters={filters} by={by} />
        </>
      )}
    </Stack>
  );
}

interface BarProps {
  groups: Group[];
  by: Group;
  filters: UsageFilters;
  onChange: (changes: Partial<Record<keyof typeof DEFAULTS, string | null>>) => void;
}

function FilterBar({ groups, by, filters, onChange }: BarProps) {
  return (
    <SimpleGrid cols={{ base: 2, sm: 3, lg: 6 }} spacing="xs" verticalSpacing="xs">
      <Select
        label="Group by"
        size="xs"
        allowDeselect={false}
        value={by}
        data={groups.map((value) => ({ value, label: GROUPS[value] }))}
        onChange={(value) => onChange({ by: value })}
      />
      <Select
        label="Time span"
        size="xs"
        allowDeselect={false}
        value={filters.span in SPANS ? filters.span : "7d"}
        data={Object.entries(SPANS).map(([value, { label }]) => ({ value, label }))}
        onChange={(value) => onChange({ span: value })}
      />
      {(["model", "task", "pop", "status"] as const).map((name) => (
        <TextInput
          key={name}
          label={GROUPS[name]}
          size="xs"
          placeholder="all"
          defaultValue={filters[name]}
          onBlur={(event) => onChange({ [name]: event.currentTarget.value.trim() })}
          onKeyDown={(event) => event.key === "Enter" && onChange({ [name]: event.currentTarget.value.trim() })}
        />
      ))}
    </SimpleGrid>
  );
}

function addUp(sums: UsageSum[], value: (sum: UsageSum) => number): number {
  return sums.reduce((total, sum) => total + value(sum), 0);
}

function Totals({ accountId, filters }: { accountId: string | null; filters: UsageFilters }) {
  const isShort = filters.span === "24h";
  const { data } = useSums(accountId, filters, isShort ? "hour" : "day");
  const sums = data?.sums ?? [];
  const points = useMemo(() => pointsOf(data, isShort), [data, isShort]);
  const calls = addUp(sums, (sum) => sum.num_calls);
  const prompt = addUp(sums, (sum) => sum.prompt_tokens);
  const cached = addUp(sums, (sum) => sum.cached_tokens);
  const useful = addUp(sums, (sum) => sum.num_useful);
  const usd = addUp(sums, (sum) => sum.usd);
  const isLoading = data === undefined;
  const stepS = isShort ? 3600 : 86_400;
  return (
    <>
      <SimpleGrid cols={{ base: 2, sm: 3, lg: 6 }} spacing="sm">
        <StatCard label="Cost" isLoading={isLoading} value={<Money value={usd} />} detail={`${formatCompact(addUp(sums, (sum) => sum.neurons))} neurons`} />
        <StatCard label="Cost per useful response" isLoading={isLoading} value={<Money value={useful > 0 ? usd / useful : null} />} detail={`${formatCompact(useful)} useful responses`} />
        <StatCard label="Calls" isLoading={isLoading} value={<Num value={calls} compact />} />
        <StatCard label="Prompt tokens" isLoading={isLoading} value={<Num value={prompt} compact />} detail={prompt > 0 && `${formatPercent(cached / prompt)} cached`} />
        <StatCard label="Completion tokens" isLoading={isLoading} value={<Num value={addUp(sums, (sum) => sum.completion_tokens)} compact />} />
        {accountId ? <ForecastCard accountId={accountId} /> : <StatCard label="Device time" isLoading={isLoading} value={<Duration value={addUp(sums, (sum) => sum.device_ms) / 1000} />} />}
      </SimpleGrid>
      {calls > 0 && (
        <SimpleGrid cols={{ base: 1, lg: 2 }}>
          <Panel title={`Cost per ${isShort ? "hour" : "day"}`}>
            <TimeChart label="Cost over time" kind="bar" data={points} series={COST} stepS={stepS} format={formatMoney} />
          </Panel>
          <Panel title={`Tokens per ${isShort ? "hour" : "day"}`}>
            <TimeChart label="Tokens over time" kind="bar" data={points} series={TOKENS} stepS={stepS} format={formatCompact} />
          </Panel>
        </SimpleGrid>
      )}
    </>
  );
}

/** Return a point for every step, also for those without calls. */
function pointsOf(data: UsageSums | undefined, isShort: boolean) {
  if (!data) return [];
  const name = isShort ? "hour" : "day";
  const length = isShort ? 13 : 10; // of "2026-01-31T23" and "2026-01-31"
  const byStep = new Map(data.sums.map((sum) => [String(sum[name]).replace(" ", "T").slice(0, length), sum]));
  const stepMs = isShort ? 3_600_000 : 86_400_000;
  const first = Math.floor(Date.parse(data.since) / stepMs) * stepMs;
  const points = [];
  for (let at = first; at < Date.parse(data.until); at += stepMs) {
    const time = new Date(at).toISOString();
    const sum = byStep.get(time.slice(0, length));
    points.push({
      at: time,
      usd: sum?.usd ?? 0,
      cached: sum?.cached_tokens ?? 0,
      prompt: (sum?.prompt_tokens ?? 0) - (sum?.cached_tokens ?? 0),
      completion: sum?.completion_tokens ?? 0,
    });
  }
  return points;
}

type Row = UsageSum & { key: string; name: string };

function SumTable({ accountId, filters, by }: { accountId: string | null; filters: UsageFilters; by: Group }) {
  const { data, error, refetch } = useSums(accountId, filters, by);
  const accounts = useAccounts();
  const tokens = useTokens(accountId ?? "", by === "token" && accountId !== null);
  const isCurrent = data?.by === by; // while another grouping loads, the last one is still there
  const rows = useMemo(() => {
    if (!data || !isCurrent) return undefined;
    const names = new Map<string, string>();
    for (const account of accounts.data ?? []) names.set(account.id, account.name);
    for (const token of tokens.data ?? []) names.set(token.id, token.name);
    return data.sums.map((sum): Row => {
      const key = String(sum[by] ?? "");
      return { ...(sum as UsageSum), key, name: names.get(key) ?? (key || "none") };
    });
  }, [data, isCurrent, by, accounts.data, tokens.data]);
  const totalUsd = addUp(rows ?? [], (row) => row.usd);
  const columns = useMemo(() => columnsOf(by, totalUsd), [by, totalUsd]);
  const isTime = by === "day" || by === "hour";
  return (
    <Panel title={`By ${GROUPS[by].replace(/^[ADHMST](?=[a-z])/, (letter) => letter.toLowerCase())}`} isFlush>
      <DataTable
        key={by}
        label="Usage"
        columns={columns}
        rows={rows}
        rowId={(row) => row.key}
        error={error}
        onRetry={() => void refetch()}
        defaultSort={isTime ? "-key" : "-usd"}
        empty={
          <EmptyState icon={IconReportMoney} title="No usage in this time span">
            Choose a longer time span or fewer filters. Usage appears within a second after a call.
          </EmptyState>
        }
      />
    </Panel>
  );
}

function columnsOf(by: Group, totalUsd: number): Column<Row>[] {
  const isTime = by === "day" || by === "hour";
  return [
    {
      id: "key",
      header: isTime ? `${GROUPS[by]} (UTC)` : GROUPS[by],
      width: 320,
      sortBy: (row) => (isTime ? row.key : row.name),
      cell: (row) => <Name value={isTime ? row.key.replace("T", " ") : row.name} maxWidth={300} />,
    },
    { id: "calls", header: "Calls", align: "right", sortBy: (row) => row.num_calls, cell: (row) => <Num value={row.num_calls} /> },
    {
      id: "prompt",
      header: "Prompt tokens",
      align: "right",
      isWideOnly: true,
      sortBy: (row) => row.prompt_tokens,
      cell: (row) => <Num value={row.prompt_tokens} compact />,
    },
    {
      id: "cached",
      header: "Cached",
      align: "right",
      isWideOnly: true,
      sortBy: (row) => (row.prompt_tokens ? row.cached_tokens / row.prompt_tokens : null),
      cell: (row) => <Percent value={row.prompt_tokens ? row.cached_tokens / row.prompt_tokens : null} />,
    },
    {
      id: "completion",
      header: "Completion tokens",
      align: "right",
      isWideOnly: true,
      sortBy: (row) => row.completion_tokens,
      cell: (row) => <Num value={row.completion_tokens} compact />,
    },
    {
      id: "neurons",
      header: "Neurons",
      align: "right",
      isWideOnly: true,
      sortBy: (row) => row.neurons,
      cell: (row) => <Num value={row.neurons} compact />,
    },
    { id: "usd", header: "Cost", align: "right", sortBy: (row) => row.usd, cell: (row) => <Money value={row.usd} /> },
    {
      id: "share",
      header: "Share of cost",
      align: "right",
      isWideOnly: true,
      sortBy: (row) => row.usd,
      cell: (row) => <Percent value={totalUsd > 0 ? row.usd / totalUsd : null} />,
    },
    {
      id: "useful",
      header: "Per useful response",
      align: "right",
      isWideOnly: true,
      sortBy: (row) => row.usd_per_useful_reply,
      cell: (row) => <Money value={row.usd_per_useful_reply} />,
    },
  ];
}

function ExportButton({ accountId, filters }: { accountId: string | null; filters: UsageFilters }) {
  const base = accountId === null ? "/client/v4/usage/export" : `/client/v4/accounts/${accountId}/ai/usage/export`;
  const query = new URLSearchParams({ ...filterQuery(filters), format: "csv" });
  return (
    <Button component="a" href={`${base}?${query}`} download variant="default" leftSection={<IconDownload size={14} />}>
      Export CSV
    </Button>
  );
}
