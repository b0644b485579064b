/** Metadata of calls, with filters, one call's timeline, and a live tail. Content is never stored. */

import { Anchor, Badge, Button, Center, Group, Loader, NumberInput, Select, Switch } from "@mantine/core";
import { useEffect, useEffectEvent, useMemo, useState } from "react";
import { useIsLive, useLive } from "@/api/events";
import { useAccountId, useAccounts, useChosenAccountId, usePermissions } from "@/app/session";
import { type Column, DataTable } from "@/components/DataTable";
import { EmptyState } from "@/components/EmptyState";
import { IconList } from "@/components/icons";
import { NoAccount } from "@/components/NoAccount";
import { PageHeader } from "@/components/PageHeader";
import { Panel } from "@/components/Panel";
import { Duration, Missing, Money, Name, Num, Time } from "@/components/values";
import { useFilters } from "@/lib/query-state";
import { useCatalog } from "@/screens/models/catalog";
import { CallDrawer } from "./CallDrawer";
import { type CallFilters, FINISHED, prepend, STATUSES } from "./call-filters";
import { type Call, matchingCalls, useCalls, useTokenNames } from "./queries";

const FILTERS = { model: "", status: "", task: "", pop: "", api_token_id: "", min_duration_ms: "", live: "", call: "" };
const NO_FILTERS = { model: null, status: null, task: null, pop: null, api_token_id: null, min_duration_ms: null };
const MAX_LIVE = 1_000; // calls of the live tail that stay in memory

type Filters = typeof FILTERS;
type SetFilters = (changes: Partial<Record<keyof Filters, string | null>>, isStep?: boolean) => void;

export default function Logs() {
  const { platform } = usePermissions();
  const chosen = useChosenAccountId();
  const own = useAccountId();
  const accountId = platform ? chosen : own;
  if (!platform && accountId === null) return <NoAccount title="Logs" />;
  return <CallList key={accountId ?? "all"} accountId={accountId} />;
}

function CallList({ accountId }: { accountId: string | null }) {
  const [all, setFilters] = useFilters(FILTERS);
  const { live, call: opened, ...filters } = all;
  const query = useCalls(accountId, filters);
  const [tail, setTail] = useState<{ of: string; calls: Call[] }>({ of: "", calls: [] });
  const filterKey = JSON.stringify(filters);
  const loaded = useMemo(() => query.data?.pages.flat(), [query.data]);
  const rows = useMemo(() => {
    if (!loaded || tail.of !== filterKey) return loaded;
    return prepend(tail.calls, loaded, Infinity);
  }, [loaded, tail, filterKey]);
  const add = (calls: Call[]) =>
    setTail((before) => ({
      of: filterKey,
      calls: prepend(calls, before.of === filterKey ? before.calls : [], MAX_LIVE),
    }));
  const open = (call: Call) => setFilters({ call: `${call.account_id}/${call.request_id}` }, true);
  const columns = useColumns(accountId, open);
  const hasFilters = Object.values(filters).some((value) => value !== "");
  return (
    <>
      <PageHeader
        title="Logs"
        description="Every call with its tokens, times and cost. Prompts and responses are never stored."
        actions={<LiveSwitch isOn={live !== ""} onChange={(isOn) => setFilters({ live: isOn ? "1" : null })} />}
      />
      {live !== "" && <LiveTail accountId={accountId} filters={filters} onCalls={add} onPoll={() => void query.refetch()} />}
      <Panel isFlush>
        <FilterBar accountId={accountId} filters={filters} setFilters={setFilters} calls={rows ?? []} />
        <DataTable
          label="Calls"
          columns={columns}
          rows={rows}
          rowId={(call) => call.request_id}
          error={query.error}
          onRetry={() => void query.refetch()}
          onRowClick={open}
          empty={
            hasFilters ? (
              <EmptyState
                icon={IconList}
                title="No call matches the filters"
                action={
                  <Button variant="default" onClick={() => setFilters(NO_FILTERS)}>
                    Clear the filters
                  </Button>
                }
              />
            ) : (
              <EmptyState icon={IconList} title="There are no calls yet">
                Calls appear here within a second. Try one in the playground.
              </EmptyState>
            )
          }
        />
        {query.hasNextPage && (
          <Center p="sm">
            <Button variant="default" loading={query.isFetchingNextPage} onClick={() => void query.fetchNextPage()}>
              Load older calls
            </Button>
          </Center>
        )}
      </Panel>
      <CallDrawer call={opened} onClose={() => setFilters({ call: null })} />
    </>
  );
}

function LiveSwitch({ isOn, onChange }: { isOn: boolean; onChange: (isOn: boolean) => void }) {
  const isLive = useIsLive();
  return (
    <Group gap="xs">
      {isOn && (isLive ? <Badge color="teal">connected</Badge> : <Loader size={14} aria-label="Connecting" />)}
      <Switch label="Live tail" checked={isOn} onChange={(event) => onChange(event.currentTarget.checked)} />
    </Group>
  );
}

interface LiveTailProps {
  accountId: string | null;
  filters: CallFilters;
  onCalls: (calls: Call[]) => void;
  /** Called at intervals while no events arrive. */
  onPoll: () => void;
}

/** Listens only while it is rendered, so that nobody pays for events that nobody sees. */
function LiveTail({ accountId, filters, onCalls, onPoll }: LiveTailProps) {
  const pollMs = useLive("calls", (data) => {
    const calls = matchingCalls(data, accountId, filters).reverse();
    if (calls.length > 0) onCalls(calls);
  });
  const poll = useEffectEvent(onPoll);
  useEffect(() => {
    if (pollMs === false) return;
    const timer = setInterval(() => poll(), pollMs);
    return () => clearInterval(timer);
  }, [pollMs]);
  return null;
}

interface FilterBarProps {
  accountId: string | null;
  filters: CallFilters;
  setFilters: SetFilters;
  calls: Call[];
}

function FilterBar({ accountId, filters, setFilters, calls }: FilterBarProps) {
  const catalog = useCatalog(true);
  const tokens = useTokenNames(accountId);
  const seen = (name: "model" | "pop" | "task" | "status") => calls.map((call) => call[name]);
  const models = unique([...(catalog.data ?? []).map((model) => model.name), ...seen("model"), filters.model]);
  const tasks = unique([...(catalog.data ?? []).map((model) => model.task.name), filters.task]);
  const tokenOptions = (tokens.data ?? []).map((token) => ({ value: token.id, label: `${token.name.slice(0, 60)} (${token.id.slice(0, 6)})` }));
  if (filters.api_token_id && !tokenOptions.some((each) => each.value === filters.api_token_id)) {
    tokenOptions.push({ value: filters.api_token_id, label: filters.api_token_id });
  }
  return (
    <Group gap="xs" p="md" pb="sm">
      <Filter label="Model" plural="All models" data={models} value={filters.model} flex="2 1 200px" onChange={(model) => setFilters({ model })} />
      <Filter label="Status" plural="All statuses" data={unique([...STATUSES, ...seen("status"), filters.status])} value={filters.status} onChange={(status) => setFilters({ status })} />
      <Filter label="Task" plural="All tasks" data={tasks} value={filters.task} onChange={(task) => setFilters({ task })} />
      <Filter label="PoP" plural="All PoPs" data={unique([...seen("pop"), filters.pop])} value={filters.pop} onChange={(pop) => setFilters({ pop })} />
      {accountId !== null && (
        <Filter label="API token" plural="All tokens" data={tokenOptions} value={filters.api_token_id} onChange={(id) => setFilters({ api_token_id: id })} />
      )}
      <NumberInput
        aria-label="Shortest total time in milliseconds"
        placeholder="At least … ms"
        min={0}
        step={100}
        suffix=" ms"
        w={130}
        value={filters.min_duration_ms === "" ? "" : Number(filters.min_duration_ms)}
        onChange={(value) => setFilters({ min_duration_ms: String(value) })}
      />
    </Group>
  );
}

function unique(values: string[]): string[] {
  return [...new Set(values.filter(Boolean))].sort();
}

interface FilterProps {
  label: string;
  plural: string;
  data: string[] | { value: string; label: string }[];
  value: string;
  flex?: string;
  onChange: (value: string | null) => void;
}

function Filter({ label, plural, data, value, flex = "1 1 130px", onChange }: FilterProps) {
  return (
    <Select
      aria-label={label}
      placeholder={plural}
      data={data}
      value={value || null}
      searchable
      clearable
      flex={flex}
      maw={340}
      nothingFoundMessage="None was seen"
      onChange={onChange}
    />
  );
}

function useColumns(accountId: string | null, open: (call: Call) => void): Column<Call>[] {
  const accounts = useAccounts();
  const names = useMemo(() => new Map((accounts.data ?? []).map((each) => [each.id, each.name])), [accounts.data]);
  const columns: Column<Call>[] = [
    {
      id: "time",
      header: "Time",
      width: 165,
      cell: (call) => (
        <Anchor
          component="button"
          type="button"
          size="sm"
          aria-label={`Open call ${call.request_id}`}
          onClick={(event) => {
            event.stopPropagation();
            open(call);
          }}
        >
          <Time value={call.started_at} />
        </Anchor>
      ),
    },
    { id: "model", header: "Model", width: 200, cell: (call) => <Name value={call.model} maxWidth="min(100%, 300px)" /> },
    { id: "status", header: "Status", width: 120, cell: (call) => <CallStatus status={call.status} /> },
    { id: "ttft", header: "TTFT", width: 90, align: "right", isWideOnly: true, cell: (call) => <Milliseconds value={call.ttft_ms} /> },
    { id: "total", header: "Total", width: 90, align: "right", cell: (call) => <Milliseconds value={call.duration_ms} /> },
    {
      id: "in",
      header: "In (cached)",
      width: 105,
      align: "right",
      isWideOnly: true,
      cell: (call) => <InputTokens call={call} />,
    },
    { id: "out", header: "Out", width: 60, align: "right", isWideOnly: true, cell: (call) => <Num value={call.completion_tokens} /> },
    { id: "cost", header: "Cost", width: 95, align: "right", isWideOnly: true, cell: (call) => <Money value={call.usd} /> },
    { id: "node", header: "Node", width: 105, isWideOnly: true, cell: (call) => (call.node_id ? <Name value={call.node_id} maxWidth="100%" /> : <Missing />) },
  ];
  if (accountId !== null) return columns;
  const account: Column<Call> = {
    id: "account",
    header: "Account",
    width: 115,
    isWideOnly: true,
    cell: (call) => <Name value={names.get(call.account_id) ?? call.account_id} maxWidth="100%" />,
  };
  return [...columns.slice(0, 1), account, ...columns.slice(1)];
}

export function CallStatus({ status }: { status: string }) {
  return <Badge color={FINISHED.has(status) ? "teal" : "red"} miw="max-content">{status.replaceAll("_", " ")}</Badge>;
}

function Milliseconds({ value }: { value: number | null | undefined }) {
  return (
    <span style={{ whiteSpace: "nowrap" }}>
      <Duration value={value === null || value === undefined ? null : value / 1000} />
    </span>
  );
}

function InputTokens({ call }: { call: Call }) {
  const cached = call.cached_tokens;
  return (
    <span title={cached > 0 ? `${cached} of ${call.prompt_tokens} tokens from the prefix cache` : undefined}>
      <Num value={call.prompt_tokens} />
      {cached > 0 && ` (${Math.round((cached / Math.max(1, call.prompt_tokens)) * 100)} %)`}
    </span>
  );
}
