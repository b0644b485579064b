/** State of the stores, gateways and nodes, their versions, and the database schema. */

import { Alert, Anchor, Badge, Group, SimpleGrid, Stack, Text } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { Link } from "react-router";
import { client, result } from "@/api/client";
import { type Column, DataTable } from "@/components/DataTable";
import { EmptyState } from "@/components/EmptyState";
import { ErrorState } from "@/components/ErrorState";
import { IconAlertTriangle, IconDatabase, IconServer } from "@/components/icons";
import { PageHeader } from "@/components/PageHeader";
import { Panel } from "@/components/Panel";
import { StatCard } from "@/components/StatCard";
import { Missing, Name, State, Time } from "@/components/values";

interface StoreHealth {
  ok: boolean;
  detail: string;
  latency_ms: number | null;
}

interface GatewayHealth {
  gateway_id: string;
  pop: string;
  version: string;
  started_at: string | null;
}

interface NodeHealth {
  node_id: string;
  pop: string;
  state: string;
  is_reachable: boolean;
  version: string;
  failed_models: string[];
}

interface PlatformHealth {
  version: string;
  gateway_id: string;
  is_ready: boolean;
  problem: string | null;
  database: StoreHealth & { kind: string; migration: string | null; expected_migration: string };
  redis: StoreHealth;
  object_store: StoreHealth;
  gateways: GatewayHealth[];
  nodes: NodeHealth[];
}

const REFRESH_MS = 10_000;

export default function Health() {
  const { data, error, refetch } = useQuery({
    queryKey: ["health"],
    queryFn: () => result<PlatformHealth>(client.GET("/client/v4/health")),
    refetchInterval: REFRESH_MS,
  });
  return (
    <Stack gap="md">
      <PageHeader title="Health" description="As seen by the gateway that serves this page." />
      {error && <ErrorState error={error} title="The state could not be loaded" onRetry={() => void refetch()} />}
      {data && <Summary health={data} />}
      {data && (
        <SimpleGrid cols={{ base: 1, md: 3 }}>
          <Store name="Database" store={data.database} kind={data.database.kind}>
            <Text size="xs" c="dimmed" component="div">
              Schema <span className="mono">{data.database.migration ?? "none"}</span>
              {data.database.migration === data.database.expected_migration
                ? ", current"
                : `, this version needs ${data.database.expected_migration}`}
            </Text>
          </Store>
          <Store name="Redis" store={data.redis} />
          <Store name="Object store" store={data.object_store} />
        </SimpleGrid>
      )}
      <Panel title="Gateways" isFlush>
        <DataTable
          label="Gateways"
          columns={GATEWAY_COLUMNS}
          rows={data?.gateways}
          rowId={(gateway) => gateway.gateway_id}
          sortParameter="gateways"
          error={error}
          empty={<EmptyState title="No gateway is known">Gateways report themselves through Redis, which is unavailable.</EmptyState>}
        />
      </Panel>
      <Panel title="Nodes" isFlush>
        <DataTable
          label="Nodes"
          columns={NODE_COLUMNS}
          rows={data?.nodes}
          rowId={(node) => node.node_id}
          sortParameter="nodes"
          error={error}
          empty={
            <EmptyState icon={IconServer} title="No node is connected">
              Start a node with <span className="mono">hearth node</span>. Models run on nodes.
            </EmptyState>
          }
        />
      </Panel>
    </Stack>
  );
}

function Summary({ health }: { health: PlatformHealth }) {
  const versions = new Set([...health.gateways, ...health.nodes].map((process) => process.version).filter(Boolean));
  const numReachable = health.nodes.filter((node) => node.is_reachable).length;
  return (
    <>
      {!health.is_ready && (
        <Alert color="red" icon={<IconAlertTriangle />} title="This gateway cannot serve calls">
          {health.problem}
        </Alert>
      )}
      {versions.size > 1 && (
        <Alert color="yellow" icon={<IconAlertTriangle />} title="Several versions run at the same time">
          {[...versions].join(", ")}. This is normal during an update; afterwards all processes should have the same version.
        </Alert>
      )}
      <SimpleGrid cols={{ base: 2, md: 4 }} spacing="sm">
        <StatCard label="Gateway" value={health.is_ready ? "Ready" : "Not ready"} detail={<span className="mono name">{health.gateway_id}</span>} />
        <StatCard label="Version" value={health.version} />
        <StatCard label="Gateways" value={health.gateways.length} />
        <StatCard label="Reachable nodes" value={`${numReachable} of ${health.nodes.length}`} />
      </SimpleGrid>
    </>
  );
}

interface StoreProps {
  name: string;
  store: StoreHealth;
  kind?: string;
  children?: React.ReactNode;
}

function Store({ name, store, kind, children }: StoreProps) {
  return (
    <Panel
      title={name}
      actions={<Badge color={store.ok ? "teal" : "red"}>{store.ok ? "ok" : "unavailable"}</Badge>}
    >
      <Group gap="xs" align="flex-start" wrap="nowrap">
        <IconDatabase size={18} />
        <div style={{ minWidth: 0 }}>
          <Text size="sm" component="div">
            {[kind, store.latency_ms === null ? null : `responds in ${store.latency_ms} ms`].filter(Boolean).join(", ") || store.detail}
          </Text>
          {store.detail && store.latency_ms !== null && (
            <Text size="sm" className="name" c={store.ok ? "dimmed" : "red"}>
              {store.detail}
            </Text>
          )}
          {children}
        </div>
      </Group>
    </Panel>
  );
}

const GATEWAY_COLUMNS: Column<GatewayHealth>[] = [
  { id: "gateway", header: "Gateway", sortBy: (gateway) => gateway.gateway_id, cell: (gateway) => <Name value={gateway.gateway_id} mono /> },
  { id: "pop", header: "PoP", sortBy: (gateway) => gateway.pop, cell: (gateway) => gateway.pop },
  { id: "version", header: "Version", sortBy: (gateway) => gateway.version, cell: (gateway) => gateway.version },
  {
    id: "started",
    header: "Started",
    isWideOnly: true,
    sortBy: (gateway) => gateway.started_at,
    cell: (gateway) => <Time value={gateway.started_at} relative />,
  },
];

const NODE_COLUMNS: Column<NodeHealth>[] = [
  {
    id: "node",
    header: "Node",
    sortBy: (node) => node.node_id,
    cell: (node) => (
      <Anchor component={Link} size="sm" to={{ pathname: "/fleet", search: `?node=${encodeURIComponent(node.node_id)}` }}>
        <Name value={node.node_id} mono />
      </Anchor>
    ),
  },
  { id: "pop", header: "PoP", sortBy: (node) => node.pop, cell: (node) => node.pop },
  { id: "state", header: "State", sortBy: (node) => node.state, cell: (node) => <State value={node.state} /> },
  {
    id: "reachable",
    header: "Connection",
    isWideOnly: true,
    cell: (node) => (node.is_reachable ? "reachable" : <Text span c="red" size="sm">unreachable</Text>),
  },
  { id: "version", header: "Version", cell: (node) => node.version || <Missing /> },
  {
    id: "failed",
    header: "Failed models",
    cell: (node) => (node.failed_models.length ? <Name value={node.failed_models.join(", ")} /> : <Missing />),
  },
];
