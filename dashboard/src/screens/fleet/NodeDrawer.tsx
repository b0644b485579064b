/** One node in detail: device, memory, replicas; drain and undrain it, load and unload models. */

import { ActionIcon, Box, Button, Drawer, Group, Progress, Select, SimpleGrid, Stack, Text, Tooltip } from "@mantine/core";
import { type ReactNode, useState } from "react";
import { usePermissions } from "@/app/session";
import { confirmAction, runAction } from "@/components/confirm";
import { type Column, DataTable } from "@/components/DataTable";
import { EmptyState } from "@/components/EmptyState";
import { IconPlus, IconTrash } from "@/components/icons";
import { Bytes, Missing, Name, Num, Percent, State, Time } from "@/components/values";
import { formatNumber } from "@/lib/format";
import { useCallableNames } from "@/screens/models/catalog";
import { MemoryBar } from "./MemoryBar";
import { Rows } from "./NodeTable";
import type { FleetNode, Replica } from "./nodes";
import { useNodeChanges } from "./queries";

export function NodeDrawer({ node, isOpen, onClose }: { node: FleetNode | null; isOpen: boolean; onClose: () => void }) {
  return (
    <Drawer
      opened={isOpen}
      onClose={onClose}
      position="right"
      size={860}
      title={node ? <Name value={node.node_id} maxWidth="70vw" /> : "Node"}
      closeButtonProps={{ "aria-label": "Close" }}
    >
      {node ? (
        <Details node={node} />
      ) : (
        <EmptyState title="This node is not in the fleet">It may have left more than five minutes ago.</EmptyState>
      )}
    </Drawer>
  );
}

function Details({ node }: { node: FleetNode }) {
  const { changePlatform } = usePermissions();
  const changes = useNodeChanges();
  const canChange = changePlatform && node.state !== "gone";
  const drain = () =>
    confirmAction({
      title: "Drain node",
      object: node.node_id,
      consequence: `Its ${node.num_calls} running calls finish, and new calls go to other nodes until it is undrained.`,
      confirm: "Drain",
      action: () => changes.drain(node.node_id),
      done: `${node.node_id} is draining`,
    });
  const undrain = () => void runAction(() => changes.undrain(node.node_id), `${node.node_id} accepts calls again`);
  return (
    <Stack gap="md">
      <Group justify="space-between">
        <Group gap="xs">
          <State value={node.state} />
          {!node.is_reachable && node.state !== "gone" && (
            <Text size="xs" c="dimmed">
              not connected to this gateway
            </Text>
          )}
        </Group>
        {canChange &&
          (node.state === "draining" ? (
            <Button variant="default" onClick={undrain}>
              Undrain
            </Button>
          ) : (
            <Button variant="light" color="red" onClick={drain}>
              Drain
            </Button>
          ))}
      </Group>
      <SimpleGrid cols={{ base: 2, sm: 4 }} spacing="sm" component="dl" m={0}>
        <Fact name="PoP">{node.pop}</Fact>
        <Fact name="Device">{node.device_name || node.device}</Fact>
        <Fact name="Version">{node.version || <Missing />}</Fact>
        <Fact name="Started">
          <Time value={node.started_at} relative />
        </Fact>
        <Fact name="Running calls">
          <Num value={node.num_calls} />
        </Fact>
        <Fact name="Queued tokens">
          <Num value={node.queued_tokens} />
        </Fact>
        <Fact name="Cache hits">
          <Percent value={node.cache_hit_ratio} />
        </Fact>
        <Fact name="Memory">
          {node.memory_bytes > 0 ? <Bytes value={node.memory_bytes} /> : <Missing />}
        </Fact>
      </SimpleGrid>
      <MemoryBar node={node} hasLegend />
      <Replicas node={node} canChange={canChange} />
      {canChange && <LoadModel node={node} />}
    </Stack>
  );
}

function Fact({ name, children }: { name: string; children: ReactNode }) {
  return (
    <Box miw={0}>
      <Text size="xs" c="dimmed" component="dt">
        {name}
      </Text>
      <Text size="sm" component="dd" m={0} className="name">
        {children}
      </Text>
    </Box>
  );
}

function Replicas({ node, canChange }: { node: FleetNode; canChange: boolean }) {
  const changes = useNodeChanges();
  const unload = (replica: Replica) =>
    confirmAction({
      title: `Unload model from ${node.node_id}`,
      object: replica.model,
      consequence: "Running calls finish first. A later call loads the model again.",
      confirm: "Unload",
      action: () => changes.unload(node.node_id, replica.model),
      done: "The model is being unloaded",
    });
  const pin = ({ model, is_pinned: isPinned }: Replica) =>
    void runAction(
      () => (isPinned ? changes.unpin(node.node_id, model) : changes.pin(node.node_id, model)),
      isPinned ? "The model may be evicted again" : "The model stays loaded",
    );
  const columns: Column<Replica>[] = [
    {
      id: "model",
      header: "Model",
      sortBy: (replica) => replica.model,
      cell: (replica) => (
        <>
          <Name value={replica.model} maxWidth={240} />
          {replica.detail && (
            <Text size="xs" c={replica.state === "failed" ? "red" : "dimmed"} className="name">
              {replica.detail}
            </Text>
          )}
        </>
      ),
    },
    { id: "state", header: "State", sortBy: (replica) => replica.state, cell: (replica) => <State value={replica.state} /> },
    {
      id: "rows",
      header: "Rows",
      align: "right",
      sortBy: (replica) => replica.num_running,
      cell: (replica) => <Rows running={replica.num_running} waiting={replica.num_waiting} />,
    },
    { id: "kv", header: "KV cache", cell: (replica) => <BlocksInUse replica={replica} /> },
    { id: "hits", header: "Cache hits", align: "right", isWideOnly: true, cell: (replica) => <Percent value={replica.cache_hit_ratio} /> },
    { id: "busy", header: "Busy", align: "right", isWideOnly: true, cell: (replica) => <Percent value={replica.busy_ratio} /> },
    { id: "weights", header: "Weights", align: "right", isWideOnly: true, cell: (replica) => (
        <Text size="sm" span style={{ whiteSpace: "nowrap" }}>
          <Bytes value={replica.weight_bytes} />
        </Text>
      ), },
  ];
  if (canChange) {
    columns.push({
      id: "actions",
      header: "",
      align: "right",
      cell: (replica) => (
        <Group gap={4} justify="flex-end" wrap="nowrap">
          <Button
            variant={replica.is_pinned ? "light" : "subtle"}
            size="compact-xs"
            aria-label={`${replica.is_pinned ? "Unpin" : "Pin"} ${replica.model}`}
            onClick={() => pin(replica)}
          >
            {replica.is_pinned ? "Pinned" : "Pin"}
          </Button>
          <Tooltip label="Unload">
            <ActionIcon aria-label={`Unload ${replica.model}`} onClick={() => unload(replica)}>
              <IconTrash size={14} />
            </ActionIcon>
          </Tooltip>
        </Group>
      ),
    });
  }
  return (
    <DataTable
      label={`Replicas of ${node.node_id}`}
      columns={columns}
      rows={node.replicas}
      rowId={(replica) => `${replica.model} ${replica.revision}`}
      sortParameter="replicas"
      empty={<EmptyState title="No model is loaded">A call for a model loads it, or load one below.</EmptyState>}
    />
  );
}

/** The KV cache in use; blocks that are only cached are free for new sequences. */
function BlocksInUse({ replica }: { replica: Replica }) {
  const { num_blocks: all, num_free_blocks: free, num_cached_blocks: cached } = replica;
  if (all === 0) return <Missing />;
  const used = Math.max(0, all - free - cached);
  const label = `${formatNumber(used)} of ${formatNumber(all)} blocks in use, ${formatNumber(cached)} cached`;
  return (
    <Progress.Root size="md" w={70} title={label}>
      <Progress.Section value={(used / all) * 100} color="orange" aria-label={label} />
      <Progress.Section value={(cached / all) * 100} color="teal" aria-hidden />
    </Progress.Root>
  );
}

function LoadModel({ node }: { node: FleetNode }) {
  const names = useCallableNames();
  const changes = useNodeChanges();
  const [model, setModel] = useState<string | null>(null);
  const [isBusy, setBusy] = useState(false);
  const loaded = new Set(node.replicas.filter((replica) => replica.state !== "failed").map((replica) => replica.model));
  const load = async () => {
    if (!model) return;
    setBusy(true);
    if (await runAction(() => changes.load(node.node_id, model), "The model is being loaded")) setModel(null);
    setBusy(false);
  };
  return (
    <Group align="end" gap="xs">
      <Select
        label="Load a model"
        placeholder="Choose a model"
        data={[...(names.data ?? [])].filter((name) => !loaded.has(name)).sort()}
        value={model}
        searchable
        clearable
        flex="1 1 240px"
        maw={420}
        error={names.error && `The models could not be listed: ${names.error.message}`}
        onChange={setModel}
      />
      <Button leftSection={<IconPlus size={14} />} disabled={!model} loading={isBusy} onClick={() => void load()}>
        Load
      </Button>
    </Group>
  );
}
