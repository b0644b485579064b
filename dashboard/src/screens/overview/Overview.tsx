/** Traffic, latency, errors, cost, ready models and alerts of the last hours or days. */

import { Badge, Group, SegmentedControl, SimpleGrid, Stack } from "@mantine/core";
import { keepPreviousData, useQuery, useQueryClient } from "@tanstack/react-query";
import { useCallback, useRef } from "react";
import { client, result } from "@/api/client";
import { useIsLive, useLive } from "@/api/events";
import { useChosenAccountId } from "@/app/session";
import { ErrorState } from "@/components/ErrorState";
import { PageHeader } from "@/components/PageHeader";
import { useFilters } from "@/lib/query-state";
import { Charts } from "./Charts";
import { FirstSteps } from "./FirstSteps";
import { AlertsPanel, ErrorsPanel, LatencyPanel, ReadyModelsPanel } from "./Panels";
import type { MetricSummary } from "./shapes";
import { Stats } from "./Stats";

const SPANS: Record<string, number> = { "1h": 1, "24h": 24, "7d": 168, "30d": 720 };
const DEFAULTS = { span: "1h" };
const REFRESH_AFTER_EVENTS_MS = 5_000; // the gateway computes a summary at most once in this time
const REFRESH_WHILE_IDLE_MS = 30_000; // moves the time axis
const REFRESH_WITHOUT_EVENTS_MS = 10_000;

function loadSummary(accountId: string | null, hours: number): Promise<MetricSummary> {
  const query = { since: new Date(Date.now() - hours * 3_600_000).toISOString() };
  if (accountId === null) return result(client.GET("/client/v4/metrics/summary", { params: { query } }));
  const params = { path: { account_id: accountId }, query };
  return result(client.GET("/client/v4/accounts/{account_id}/ai/metrics/summary", { params }));
}

export default function Overview() {
  const accountId = useChosenAccountId();
  const [{ span }, setFilters] = useFilters(DEFAULTS);
  const key = ["metrics-summary", accountId, span];
  const poll = useRefreshOnCalls("metrics-summary") ? REFRESH_WHILE_IDLE_MS : REFRESH_WITHOUT_EVENTS_MS;
  const { data, error, refetch } = useQuery({
    queryKey: key,
    queryFn: () => loadSummary(accountId, SPANS[span] ?? 1),
    refetchInterval: poll,
    placeholderData: keepPreviousData,
  });

  return (
    <Stack gap="md">
      <PageHeader
        title="Overview"
        description={accountId ? "Traffic of the selected account." : "Traffic of all accounts."}
        actions={
          <>
            <LiveBadge />
            <SegmentedControl
              aria-label="Time span"
              value={span in SPANS ? span : "1h"}
              onChange={(value) => setFilters({ span: value })}
              data={Object.keys(SPANS).map((value) => ({ value, label: value.replace(/(\d+)/, "$1 ") }))}
            />
          </>
        }
      />
      {error && <ErrorState error={error} title="The figures could not be loaded" onRetry={() => void refetch()} />}
      {data && data.totals.calls === 0 && span === "1h" && <FirstSteps />}
      <Stats summary={data} />
      {data && (
        <>
          <Charts summary={data} />
          <SimpleGrid cols={{ base: 1, md: 2, xl: 4 }}>
            <LatencyPanel latency={data.latency} />
            <ErrorsPanel errors={data.errors} numCalls={data.totals.calls} />
            <ReadyModelsPanel models={data.ready_models} />
            <AlertsPanel alerts={data.alerts} />
          </SimpleGrid>
        </>
      )}
    </Stack>
  );
}

/** Refresh queries when calls finish, but not more often than the gateway computes. Returns True while live. */
function useRefreshOnCalls(key: string): boolean {
  const queries = useQueryClient();
  const isScheduled = useRef(false);
  const refresh = useCallback(() => {
    if (isScheduled.current) return;
    isScheduled.current = true;
    setTimeout(() => {
      isScheduled.current = false;
      void queries.invalidateQueries({ queryKey: [key] });
    }, REFRESH_AFTER_EVENTS_MS);
  }, [queries, key]);
  return useLive("calls", refresh) === false;
}

function LiveBadge() {
  const isLive = useIsLive();
  return (
    <Group gap={4}>
      <Badge color={isLive ? "teal" : "gray"} variant="dot">
        {isLive ? "Live" : "Polling"}
      </Badge>
    </Group>
  );
}
