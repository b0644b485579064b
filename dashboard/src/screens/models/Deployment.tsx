/** Where a model runs and what belongs to it: versions, replicas, variants, aliases, adapters, deprecation. */

import { Anchor, Badge, Button, Group, Modal, SimpleGrid, Stack, Text, Textarea, TextInput } from "@mantine/core";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { Link, useLocation } from "react-router";
import { client, result } from "@/api/client";
import { accountQuery } from "@/app/Shell";
import { usePermissions } from "@/app/session";
import { confirmAction } from "@/components/confirm";
import { CopyButton } from "@/components/CopyButton";
import { type Column, DataTable } from "@/components/DataTable";
import { EmptyState } from "@/components/EmptyState";
import { ErrorState } from "@/components/ErrorState";
import { Panel } from "@/components/Panel";
import { StatCard } from "@/components/StatCard";
import { Bytes, Missing, Name, Num, State, Time } from "@/components/values";
import { formatNumber } from "@/lib/format";
import { AliasForm } from "./Aliases";
import { ModelLink } from "./links";
import { type ModelDetails, useModelDetails } from "./platform";

const STATES: Record<ModelDetails["state"], string> = {
  available: "Weights are installed",
  listed: "Known by name; its weights are not installed",
  retired: "Calls are refused",
};

export function Deployment({ name }: { name: string }) {
  const { data, error, refetch } = useModelDetails(name);
  if (error && !data) return <ErrorState error={error} title="The model could not be read" onRetry={() => void refetch()} />;
  return (
    <Stack gap="md">
      <SimpleGrid cols={{ base: 2, sm: 4 }} spacing="sm">
        <StatCard label="State" value={data?.state} detail={data && STATES[data.state]} isLoading={!data} />
        <StatCard
          label="Replicas ready"
          value={formatNumber(data?.replicas.filter((each) => each.state === "ready" || each.state === "idle").length ?? 0)}
          detail={`of ${data?.replicas.length ?? 0}`}
          isLoading={!data}
        />
        <StatCard label="Adapters" value={formatNumber(data?.num_adapters ?? 0)} detail="of all accounts" isLoading={!data} />
        <StatCard label="License" value={<Name value={data?.license || "–"} maxWidth="100%" />} isLoading={!data} />
      </SimpleGrid>
      {data && <DeprecationPanel details={data} />}
      <Panel title="Replicas" isFlush>
        <DataTable
          label="Replicas"
          columns={REPLICAS}
          rows={data?.replicas}
          rowId={(each) => `${each.node_id} ${each.revision}`}
          sortParameter="replicas"
          empty={
            <EmptyState title="No node has loaded this model">
              The first call loads it. To load it before, open a node on the fleet screen.
            </EmptyState>
          }
        />
      </Panel>
      <Panel title="Versions" isFlush>
        <DataTable
          label="Versions"
          columns={VERSIONS}
          rows={data?.versions}
          rowId={(each) => each.revision}
          sortParameter="versions"
          empty={<EmptyState title="No version is published">Publish the model from the hub or from a bucket.</EmptyState>}
        />
      </Panel>
      <Panel
        title="Quantized variants"
        description={
          data?.base_model ? (
            <>
              This model is a variant of <ModelLink name={data.base_model} />
            </>
          ) : undefined
        }
        isFlush
      >
        <DataTable
          label="Quantized variants"
          columns={VARIANTS}
          rows={data?.variants}
          rowId={(each) => each.name}
          sortParameter="variants"
          empty={
            <EmptyState title="There is no variant">
              Make one with <span className="mono name">hearth model quantize {name} --format int8</span>
            </EmptyState>
          }
        />
      </Panel>
      {data && <AliasPanel details={data} />}
    </Stack>
  );
}

type Replica = ModelDetails["replicas"][number];
type Version = ModelDetails["versions"][number];
type Variant = ModelDetails["variants"][number];

const REPLICAS: Column<Replica>[] = [
  { id: "node", header: "Node", sortBy: (each) => each.node_id, cell: (each) => <NodeLink nodeId={each.node_id} /> },
  { id: "pop", header: "PoP", sortBy: (each) => each.pop, cell: (each) => <Name value={each.pop} /> },
  { id: "state", header: "State", sortBy: (each) => each.state, cell: (each) => <State value={each.state} /> },
  { id: "running", header: "Running", align: "right", sortBy: (each) => each.num_running, cell: (each) => <Num value={each.num_running} /> },
  { id: "waiting", header: "Waiting", align: "right", isWideOnly: true, sortBy: (each) => each.num_waiting, cell: (each) => <Num value={each.num_waiting} /> },
  { id: "revision", header: "Version", isWideOnly: true, cell: (each) => <Revision value={each.revision} isCurrent={each.is_current} /> },
];

const VERSIONS: Column<Version>[] = [
  { id: "revision", header: "Version", cell: (each) => <Revision value={each.revision} isCurrent={each.is_current} /> },
  { id: "published", header: "Published", cell: (each) => (each.published_at ? <Time value={each.published_at} /> : "built in") },
  { id: "files", header: "Files", align: "right", cell: (each) => <Num value={each.num_files} /> },
  { id: "size", header: "Size", align: "right", cell: (each) => <Bytes value={each.size_bytes} /> },
];

const VARIANTS: Column<Variant>[] = [
  { id: "name", header: "Model", cell: (each) => <ModelLink name={each.name} /> },
  { id: "format", header: "Format", cell: (each) => each.format ?? <Missing /> },
  { id: "size", header: "Size", align: "right", cell: (each) => <Bytes value={each.size_bytes} /> },
];

function Revision({ value, isCurrent }: { value: string; isCurrent: boolean }) {
  return (
    <Group gap={6} wrap="nowrap">
      <span className="mono">{value.slice(0, 12)}</span>
      <CopyButton value={value} label={`Copy version ${value.slice(0, 12)}`} />
      {isCurrent && <Badge color="teal">current</Badge>}
    </Group>
  );
}

function NodeLink({ nodeId }: { nodeId: string }) {
  const { search } = useLocation();
  const query = new URLSearchParams(accountQuery(search));
  query.set("node", nodeId);
  return (
    <Anchor component={Link} size="sm" to={{ pathname: "/fleet", search: `?${query}` }}>
      {nodeId}
    </Anchor>
  );
}

function AliasPanel({ details }: { details: ModelDetails }) {
  const { changePlatform } = usePermissions();
  const [isOpen, setOpen] = useState(false);
  const action = changePlatform && (
    <Button variant="default" onClick={() => setOpen(true)}>
      Add alias
    </Button>
  );
  return (
    <Panel title="Aliases" actions={action}>
      {details.aliases.length === 0 ? (
        <Text size="sm" c="dimmed">
          No other name leads to this model.
        </Text>
      ) : (
        <Group gap="xs">
          {details.aliases.map((alias) => (
            <Badge key={alias} variant="default">
              {alias}
            </Badge>
          ))}
        </Group>
      )}
      <Modal opened={isOpen} onClose={() => setOpen(false)} title="Add alias">
        <AliasForm alias={{ target: details.name }} onDone={() => setOpen(false)} />
      </Modal>
    </Panel>
  );
}

function DeprecationPanel({ details }: { details: ModelDetails }) {
  const { changePlatform } = usePermissions();
  const queries = useQueryClient();
  const [isOpen, setOpen] = useState(false);
  const { deprecation, name } = details;
  const refresh = () =>
    Promise.all([
      queries.invalidateQueries({ queryKey: ["model details", name] }),
      queries.invalidateQueries({ queryKey: ["catalog"] }),
    ]);
  const remove = () =>
    confirmAction({
      title: "Remove deprecation",
      object: name,
      consequence: "The model stays callable without an end.",
      confirm: "Remove deprecation",
      isDestructive: false,
      action: async () => {
        await result(
          client.DELETE("/client/v4/deprecations/{model}", {
            params: { path: { model: name } },
            headers: deprecation ? { "if-match": `"${deprecation.version}"` } : {},
          }),
        );
        await refresh();
      },
    });
  return (
    <Panel
      title="Deprecation"
      actions={
        changePlatform && (
          <>
            {deprecation && (
              <Button variant="default" onClick={remove}>
                Remove
              </Button>
            )}
            <Button variant="default" onClick={() => setOpen(true)}>
              {deprecation ? "Change" : "Deprecate"}
            </Button>
          </>
        )
      }
    >
      {details.deprecates_on ? (
        <Text size="sm">
          Calls are refused from {details.deprecates_on} (UTC).
          {details.successor && (
            <>
              {" "}
              Clients are told to use <ModelLink name={details.successor} />.
            </>
          )}
          {deprecation?.reason && (
            <Text size="sm" c="dimmed" span className="name" display="block">
              {deprecation.reason}
            </Text>
          )}
        </Text>
      ) : (
        <Text size="sm" c="dimmed">
          The model has no planned end.
        </Text>
      )}
      <Modal opened={isOpen} onClose={() => setOpen(false)} title="Deprecate model">
        <DeprecationForm
          details={details}
          onDone={() => {
            setOpen(false);
            void refresh();
          }}
        />
      </Modal>
    </Panel>
  );
}

function DeprecationForm({ details, onDone }: { details: ModelDetails; onDone: () => void }) {
  const { deprecation, name } = details;
  const [at, setAt] = useState(deprecation?.at ?? "");
  const [reason, setReason] = useState(deprecation?.reason ?? "");
  const [successor, setSuccessor] = useState(deprecation?.successor ?? "");
  const save = useMutation({
    mutationFn: () =>
      result(
        client.PUT("/client/v4/deprecations/{model}", {
          params: { path: { model: name } },
          body: { at, reason, successor: successor === "" ? null : successor },
          headers: deprecation ? { "if-match": `"${deprecation.version}"` } : {},
        }),
      ),
    onSuccess: onDone,
  });
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault();
        save.mutate();
      }}
    >
      <Stack gap="sm">
        <TextInput label="First day without the model" description="UTC" type="date" required value={at} onChange={(event) => setAt(event.currentTarget.value)} />
        <TextInput label="Successor" description="Model id that refused calls name" placeholder="@cf/acme/chat-2" value={successor} onChange={(event) => setSuccessor(event.currentTarget.value)} />
        <Textarea label="Reason" autosize minRows={2} value={reason} onChange={(event) => setReason(event.currentTarget.value)} />
        {save.error && <ErrorState error={save.error} title="The deprecation was not saved" />}
        <Group justify="flex-end">
          <Button type="submit" loading={save.isPending} disabled={at === ""}>
            Save
          </Button>
        </Group>
      </Stack>
    </form>
  );
}
