/** The list of nodes: one row each, sortable; only visible rows are rendered. */

import { Anchor, Group, Text, Tooltip } from "@mantine/core";
import { memo, type ReactNode, useMemo } from "react";
import { type Column, DataTable } from "@/components/DataTable";
import { Missing, Name, Num, Percent, State, Time } from "@/components/values";
import classes from "./fleet.module.css";
import { MemoryBar } from "./MemoryBar";
import { type FleetNode, memoryOf, type Replica, rowsOf } from "./nodes";

const MAX_MODELS = 2; // models that a row names; the others are counted

interface NodeTableProps {
  nodes: FleetNode[] | undefined;
  error: unknown;
  onRetry: () => void;
  onOpen: (nodeId: string) => void;
  empty: ReactNode;
}

export function NodeTable({ nodes, error, onRetry, onOpen, empty }: NodeTableProps) {
  const columns = useMemo(() => columnsOf(onOpen).map(withMemo), [onOpen]);
  return (
    <DataTable
      label="Nodes"
      columns={columns}
      rows={nodes}
      rowId={(node) => node.node_id}
      error={error}
      onRetry={onRetry}
      onRowClick={(node) => onOpen(node.node_id)}
      defaultSort="node"
      empty={empty}
    />
  );
}

/** An update changes some of the nodes; the cells of the others are not rendered again. */
const Cell = memo(function Cell({ node, render }: { node: FleetNode; render: (node: FleetNode) => ReactNode }) {
  return render(node);
});

function withMemo(column: Column<FleetNode>): Column<FleetNode> {
  return { ...column, cell: (node) => <Cell node={node} render={column.cell} /> };
}

function columnsOf(onOpen: (nodeId: string) => void): Column<FleetNode>[] {
  return [
    {
      id: "node",
      header: "Node",
      width: 130,
      sortBy: (node) => node.node_id,
      cell: (node) => (
        <Anchor
          component="button"
          type="button"
          size="sm"
          onClick={(event) => {
            event.stopPropagation();
            onOpen(node.node_id);
          }}
        >
          <Name value={node.node_id} maxWidth={110} />
        </Anchor>
      ),
    },
    { id: "pop", header: "PoP", width: 75, sortBy: (node) => node.pop, cell: (node) => <Name value={node.pop} maxWidth={60} /> },
    { id: "state", header: "State", width: 95, sortBy: (node) => node.state, cell: (node) => <State value={node.state} /> },
    {
      id: "models",
      header: "Models",
      width: 230,
      sortBy: (node) => node.replicas.length,
      cell: (node) => <Models replicas={node.replicas} />,
    },
    {
      id: "memory",
      header: "Memory",
      width: 115,
      isWideOnly: true,
      sortBy: (node) => {
        const memory = memoryOf(node);
        return memory.total === 0 ? null : (memory.weights + memory.kvUsed) / memory.total;
      },
      cell: (node) => <MemoryBar node={node} />,
    },
    {
      id: "rows",
      header: "Rows",
      width: 100,
      align: "right",
      sortBy: (node) => rowsOf(node).running,
      cell: (node) => <Rows {...rowsOf(node)} />,
    },
    {
      id: "queue",
      header: "Queued",
      width: 85,
      align: "right",
      isWideOnly: true,
      sortBy: (node) => node.queued_tokens,
      cell: (node) => <Num value={node.queued_tokens} compact />,
    },
    {
      id: "hits",
      header: "Cache hits",
      width: 95,
      align: "right",
      isWideOnly: true,
      sortBy: (node) => node.cache_hit_ratio,
      cell: (node) => <Percent value={node.cache_hit_ratio} />,
    },
    {
      id: "version",
      header: "Version",
      width: 80,
      isWideOnly: true,
      sortBy: (node) => node.version,
      cell: (node) => (node.version ? <Name value={node.version} maxWidth={70} /> : <Missing />),
    },
    {
      id: "started",
      header: "Started",
      width: 105,
      isWideOnly: true,
      sortBy: (node) => node.started_at,
      cell: (node) => <Time value={node.started_at} relative />,
    },
  ];
}

/** Rows that run, and rows that wait beside them. */
export function Rows({ running, waiting }: { running: number; waiting: number }) {
  return (
    <span title={`${running} running, ${waiting} waiting`}>
      <Num value={running} />
      {waiting > 0 && ` + ${waiting}`}
    </span>
  );
}

const Models = memo(function Models({ replicas }: { replicas: Replica[] }) {
  if (replicas.length === 0) {
    return (
      <Text size="xs" c="dimmed">
        none loaded
      </Text>
    );
  }
  const rest = replicas.slice(MAX_MODELS);
  return (
    <Group gap={6} wrap="nowrap">
      {replicas.slice(0, MAX_MODELS).map((replica) => (
        <span key={`${replica.model} ${replica.revision}`} className={classes.model} title={`${replica.model}: ${replica.state}`}>
          <span className={classes.dot} data-state={replica.state} role="img" aria-label={replica.state} />
          <span className="ellipsis">{shortName(replica.model)}</span>
        </span>
      ))}
      {rest.length > 0 && (
        <Tooltip label={rest.map((replica) => shortName(replica.model)).join(", ")}>
          <Text size="xs" c="dimmed" span style={{ whiteSpace: "nowrap" }}>
            +{rest.length}
          </Text>
        </Tooltip>
      )}
    </Group>
  );
});

function shortName(model: string): string {
  return model.slice(model.lastIndexOf("/") + 1);
}
