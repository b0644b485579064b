/** Nodes on a world map and in a list, live; and why a call is placed on one of them. */

import { Button, Collapse, Group, Select, SimpleGrid, Stack, Tabs, TextInput } from "@mantine/core";
import { useDebouncedCallback, useLocalStorage } from "@mantine/hooks";
import { memo, useCallback, useMemo, useState } from "react";
import { useIsLive } from "@/api/events";
import { EmptyState } from "@/components/EmptyState";
import { IconChevronDown, IconChevronRight, IconSearch, IconServer } from "@/components/icons";
import { PageHeader } from "@/components/PageHeader";
import { Panel } from "@/components/Panel";
import { StatCard } from "@/components/StatCard";
import { formatBytes, formatCompact, formatNumber, formatPercent } from "@/lib/format";
import { useFilters } from "@/lib/query-state";
import { NodeDrawer } from "./NodeDrawer";
import { NodeTable } from "./NodeTable";
import { filterNodes, type FleetNode, totalsOf } from "./nodes";
import { Placement } from "./Placement";
import { useNodes, usePops } from "./queries";
import { Scaling } from "./Scaling";
import { WorldMap } from "./WorldMap";

const FILTERS = { tab: "nodes", search: "", pop: "", state: "", model: "", node: "" };
type Filters = typeof FILTERS;
type SetFilters = (changes: Partial<Record<keyof Filters, string | null>>, isStep?: boolean) => void;

const NO_NODES: FleetNode[] = [];

export default function Fleet() {
  const [filters, setFilters] = useFilters(FILTERS);
  return (
    <>
      <PageHeader title="Fleet" description="Nodes, their models and their load." />
      <Tabs value={filters.tab} onChange={(tab) => setFilters({ tab }, true)}>
        <Tabs.List aria-label="Views of the fleet" mb="md">
          <Tabs.Tab value="nodes">Nodes</Tabs.Tab>
          <Tabs.Tab value="placement">Why this node</Tabs.Tab>
          <Tabs.Tab value="scaling">Scaling</Tabs.Tab>
        </Tabs.List>
        <Tabs.Panel value="nodes">
          <Nodes filters={filters} setFilters={setFilters} />
        </Tabs.Panel>
        <Tabs.Panel value="placement">
          <Placement />
        </Tabs.Panel>
        <Tabs.Panel value="scaling">{filters.tab === "scaling" && <Scaling />}</Tabs.Panel>
      </Tabs>
    </>
  );
}

function Nodes({ filters, setFilters }: { filters: Filters; setFilters: SetFilters }) {
  const { data, error, refetch } = useNodes();
  const pops = usePops();
  const isLive = useIsLive();
  const [isMapOpen, setMapOpen] = useLocalStorage({ key: "hearth.fleet.map", defaultValue: true, getInitialValueInEffect: false });
  const nodes = data ?? NO_NODES;
  const { search, pop, state, model } = filters;
  const shown = useMemo(() => filterNodes(nodes, { search, pop, state, model }), [nodes, search, pop, state, model]);
  const open = useCallback((nodeId: string) => setFilters({ node: nodeId }, true), [setFilters]);
  const selected = nodes.find((node) => node.node_id === filters.node) ?? null;
  return (
    <Stack gap="md">
      <Totals nodes={nodes} isLoading={data === undefined && !error} />
      <Panel
        title="Map"
        actions={
          <Button
            variant="subtle"
            color="gray"
            aria-expanded={isMapOpen}
            leftSection={isMapOpen ? <IconChevronDown size={14} /> : <IconChevronRight size={14} />}
            onClick={() => setMapOpen(!isMapOpen)}
          >
            {isMapOpen ? "Hide" : "Show"}
          </Button>
        }
      >
        <Collapse expanded={isMapOpen}>
          <WorldMap
            nodes={nodes}
            pops={pops.data ?? []}
            selected={filters.pop}
            onSelect={(name) => setFilters({ pop: name })}
          />
        </Collapse>
      </Panel>
      <Panel
        title="Nodes"
        description={`${formatNumber(shown.length)} of ${formatNumber(nodes.length)} nodes${isLive ? ", live" : ", refreshed every 3 seconds"}`}
        isFlush
      >
        <FilterBar nodes={nodes} filters={filters} setFilters={setFilters} />
        <NodeTable
          nodes={data && shown}
          error={error}
          onRetry={() => void refetch()}
          onOpen={open}
          empty={
            nodes.length === 0 ? (
              <EmptyState title="No node is connected" icon={IconServer}>
                A node appears here within a second of its start. <span className="mono">hearth up</span> starts one on this
                machine, and <span className="mono">docs/two_machines.md</span> adds others.
              </EmptyState>
            ) : (
              <EmptyState
                title="No node matches the filters"
                icon={IconServer}
                action={
                  <Button variant="default" onClick={() => setFilters({ search: null, pop: null, state: null, model: null })}>
                    Clear the filters
                  </Button>
                }
              />
            )
          }
        />
      </Panel>
      <NodeDrawer node={selected} isOpen={filters.node !== ""} onClose={() => setFilters({ node: null })} />
    </Stack>
  );
}

interface FilterBarProps {
  nodes: FleetNode[];
  filters: Filters;
  setFilters: SetFilters;
}

function FilterBar({ nodes, filters, setFilters }: FilterBarProps) {
  // Joined, because an update rarely adds a name and equal texts leave the controls as they are.
  const pops = useMemo(() => unique(nodes.map((node) => node.pop)), [nodes]);
  const models = useMemo(() => unique(nodes.flatMap((node) => node.replicas.map((replica) => replica.model))), [nodes]);
  const { search, pop, state, model } = filters;
  return <FilterControls {...{ pops, models, search, pop, state, model, setFilters }} />;
}

function unique(names: string[]): string {
  return [...new Set(names)].sort().join("\n");
}

interface FilterControlsProps extends Pick<Filters, "search" | "pop" | "state" | "model"> {
  /** Names, one per line. */
  pops: string;
  models: string;
  setFilters: SetFilters;
}

const FilterControls = memo(function FilterControls({ pops, models, setFilters, ...filters }: FilterControlsProps) {
  return (
    <Group gap="xs" px="md" pb="sm">
      <SearchInput value={filters.search} onChange={(text) => setFilters({ search: text })} />
      <FilterSelect label="PoP" plural="All PoPs" data={pops.split("\n").filter(Boolean)} value={filters.pop} onChange={(pop) => setFilters({ pop })} />
      <FilterSelect label="State" plural="All states" data={["ready", "draining", "gone"]} value={filters.state} onChange={(state) => setFilters({ state })} />
      <FilterSelect
        label="Model"
        plural="All models"
        data={models.split("\n").filter(Boolean)}
        value={filters.model}
        isWide
        onChange={(model) => setFilters({ model })}
      />
    </Group>
  );
});

interface FilterSelectProps {
  label: string;
  plural: string;
  data: string[];
  value: string;
  isWide?: boolean;
  onChange: (value: string | null) => void;
}

function FilterSelect({ label, plural, data, value, isWide = false, onChange }: FilterSelectProps) {
  return (
    <Select
      aria-label={label}
      placeholder={plural}
      data={data}
      value={value || null}
      clearable
      searchable
      flex={isWide ? "1 1 200px" : "1 1 120px"}
      maw={isWide ? 360 : 180}
      onChange={onChange}
    />
  );
}

/** The text is a filter only after a pause, so that typing stays quick with many nodes. */
function SearchInput({ value, onChange }: { value: string; onChange: (text: string) => void }) {
  const [text, setText] = useState(value);
  const report = useDebouncedCallback(onChange, 200);
  return (
    <TextInput
      aria-label="Find nodes"
      placeholder="Find by id, device, model"
      leftSection={<IconSearch size={14} />}
      value={text}
      flex="1 1 200px"
      maw={300}
      onChange={(event) => {
        setText(event.currentTarget.value);
        report(event.currentTarget.value);
      }}
    />
  );
}

function Totals({ nodes, isLoading }: { nodes: FleetNode[]; isLoading: boolean }) {
  const totals = useMemo(() => totalsOf(nodes), [nodes]);
  const others = [
    totals.numDraining > 0 && `${formatNumber(totals.numDraining)} draining`,
    totals.numGone > 0 && `${formatNumber(totals.numGone)} gone`,
  ].filter(Boolean);
  return (
    <SimpleGrid cols={{ base: 2, sm: 4 }} spacing="sm">
      <StatCard
        label="Nodes ready"
        value={formatNumber(totals.numReady)}
        detail={others.join(", ") || "all nodes"}
        isLoading={isLoading}
      />
      <StatCard
        label="Replicas ready"
        value={formatNumber(totals.numReadyReplicas)}
        detail={`of ${formatNumber(totals.numReplicas)}`}
        isLoading={isLoading}
      />
      <StatCard
        label="Rows running"
        value={formatCompact(totals.numRunning)}
        detail={`${formatCompact(totals.numWaiting)} waiting, ${formatCompact(totals.queuedTokens)} tokens queued`}
        isLoading={isLoading}
      />
      <StatCard
        label="Memory in use"
        value={totals.memoryBytes > 0 ? formatPercent(totals.usedBytes / totals.memoryBytes) : "–"}
        detail={totals.memoryBytes > 0 ? `of ${formatBytes(totals.memoryBytes)}` : "not reported"}
        isLoading={isLoading}
      />
    </SimpleGrid>
  );
}
