/** Autoscaling: the plan with its reasons, overrides, reserved capacity, and what a lost or added PoP would change. */

import { ActionIcon, Alert, Button, Group, NumberInput, Select, Stack, Switch, Text, TextInput } from "@mantine/core";
import { useState } from "react";
import { useAccounts, usePermissions } from "@/app/session";
import { confirmAction, runAction, showError } from "@/components/confirm";
import { type Column, DataTable } from "@/components/DataTable";
import { EmptyState } from "@/components/EmptyState";
import { IconTrash } from "@/components/icons";
import { Panel } from "@/components/Panel";
import { Name, Num, Time } from "@/components/values";
import { useCallableNames } from "@/screens/models/catalog";
import { usePops } from "./queries";
import {
  type Change,
  compareWithoutPop,
  compareWithPop,
  type Difference,
  type Override,
  type Reservation,
  type Target,
  useOverrides,
  usePlan,
  useReservations,
  useRuleChanges,
  type WhatIf as Comparison,
} from "./scaling";

const POP = /^[A-Za-z0-9._-]{1,64}$/;

export function Scaling() {
  return (
    <Stack gap="md">
      <PlanPanels />
      <Overrides />
      <Reserved />
      <WhatIf />
    </Stack>
  );
}

const MODEL_AND_POP = [
  { id: "model", header: "Model", sortBy: (row: { model: string }) => row.model, cell: (row: { model: string }) => <Name value={row.model} maxWidth={260} /> },
  { id: "pop", header: "PoP", sortBy: (row: { pop: string | null }) => row.pop ?? "", cell: (row: { pop: string | null }) => row.pop ?? "all together" },
];

const TARGETS: Column<Target>[] = [
  ...MODEL_AND_POP,
  { id: "current", header: "Replicas now", align: "right", sortBy: (row) => row.num_current, cell: (row) => <Num value={row.num_current} /> },
  { id: "wanted", header: "Planned", align: "right", sortBy: (row) => row.num_replicas, cell: (row) => <Num value={row.num_replicas} /> },
  { id: "reason", header: "Reason", isWideOnly: true, cell: (row) => <Reason text={row.reason} /> },
];

const CHANGES: Column<Change>[] = [
  { id: "action", header: "Change", sortBy: (row) => row.action, cell: (row) => row.action },
  ...MODEL_AND_POP,
  { id: "node", header: "Node", sortBy: (row) => row.node_id, cell: (row) => <Name value={row.node_id} /> },
  { id: "reason", header: "Reason", isWideOnly: true, cell: (row) => <Reason text={row.reason} /> },
];

function Reason({ text }: { text: string }) {
  return (
    <Text size="xs" c="dimmed" className="name">
      {text}
    </Text>
  );
}

function PlanPanels() {
  const { data, error, refetch } = usePlan();
  const retry = () => void refetch();
  return (
    <>
      {data && !data.is_on && (
        <Alert color="gray" title="Autoscaling is off">
          Nodes keep what they have. The plan shows what would change with <span className="mono">HEARTH_SCALING=on</span>.
        </Alert>
      )}
      <Panel
        title="Planned replicas"
        description={
          data?.applied_at ? (
            <>
              last applied <Time value={data.applied_at} relative />
            </>
          ) : undefined
        }
        isFlush
      >
        <DataTable
          label="Planned replicas"
          columns={TARGETS}
          rows={data?.targets}
          rowId={(row) => `${row.model} ${row.pop}`}
          error={error}
          onRetry={retry}
          sortParameter="targets"
          empty={<EmptyState title="No model has replicas or demand">Replicas are planned as soon as a model is called.</EmptyState>}
        />
      </Panel>
      {data && data.changes.length > 0 && (
        <Panel title="Next changes" isFlush>
          <DataTable
            label="Next changes"
            columns={CHANGES}
            rows={data.changes}
            rowId={(row) => `${row.action} ${row.model} ${row.node_id}`}
            sortParameter="changes"
            empty={null}
          />
        </Panel>
      )}
      {data && data.unplaced.length > 0 && (
        <Alert color="yellow" title="Replicas without room">
          {data.unplaced.map((row) => (
            <Text size="sm" key={`${row.model} ${row.pop}`} className="name">
              {row.num_replicas} × {row.model} in {row.pop}: {row.reason}
            </Text>
          ))}
        </Alert>
      )}
    </>
  );
}

function Overrides() {
  const { changePlatform } = usePermissions();
  const { data, error, refetch } = useOverrides();
  const changes = useRuleChanges();
  const columns: Column<Override>[] = [
    ...MODEL_AND_POP,
    { id: "min", header: "At least", align: "right", cell: (row) => <Num value={row.min_replicas} /> },
    { id: "max", header: "At most", align: "right", cell: (row) => (row.max_replicas === null ? "no limit" : <Num value={row.max_replicas} />) },
    { id: "pinned", header: "Pinned", cell: (row) => (row.is_pinned ? "yes" : "no") },
  ];
  if (changePlatform) {
    columns.push({
      id: "actions",
      header: "",
      align: "right",
      cell: (row) => (
        <ActionIcon
          aria-label={`Remove the override of ${row.model}`}
          onClick={() =>
            confirmAction({
              title: "Remove override",
              object: row.model,
              consequence: "Replicas then follow the demand only.",
              confirm: "Remove",
              action: () => changes.removeOverride(row),
              done: "The override is removed",
            })
          }
        >
          <IconTrash size={14} />
        </ActionIcon>
      ),
    });
  }
  return (
    <Panel title="Scale" description="Limits for the replicas of a model, in one PoP or in all together" isFlush>
      <DataTable
        label="Overrides"
        columns={columns}
        rows={data}
        rowId={(row) => `${row.model} ${row.pop ?? ""}`}
        error={error}
        onRetry={() => void refetch()}
        sortParameter="overrides"
        empty={<EmptyState title="No override">Replicas follow the demand.</EmptyState>}
      />
      {changePlatform && <OverrideForm />}
    </Panel>
  );
}

function ModelSelect({ label, value, onChange }: { label: string; value: string | null; onChange: (value: string | null) => void }) {
  const names = useCallableNames();
  return (
    <Select
      label={label}
      placeholder="Choose a model"
      data={[...(names.data ?? [])].sort()}
      value={value}
      searchable
      flex="1 1 240px"
      onChange={onChange}
      error={names.error && `The models could not be listed: ${names.error.message}`}
    />
  );
}

function PopSelect({ label, value, isOptional, onChange }: { label: string; value: string; isOptional?: boolean; onChange: (value: string) => void }) {
  const pops = usePops();
  const all = isOptional ? [{ value: "", label: "All PoPs together" }] : [];
  return (
    <Select
      label={label}
      data={[...all, ...(pops.data ?? []).map((each) => ({ value: each.pop, label: each.pop }))]}
      value={value}
      w={170}
      allowDeselect={false}
      onChange={(pop) => onChange(pop ?? "")}
    />
  );
}

function OverrideForm() {
  const changes = useRuleChanges();
  const [model, setModel] = useState<string | null>(null);
  const [pop, setPop] = useState("");
  const [least, setLeast] = useState<number | string>(1);
  const [most, setMost] = useState<number | string>("");
  const [isPinned, setPinned] = useState(false);
  const save = () => {
    if (!model) return;
    const rule = { model, pop: pop || null, min_replicas: Number(least), max_replicas: most === "" ? null : Number(most), is_pinned: isPinned };
    void runAction(() => changes.setOverride(rule), "The override is set");
  };
  return (
    <Group align="end" gap="xs" p="md">
      <ModelSelect label="Model to scale" value={model} onChange={setModel} />
      <PopSelect label="PoP to scale" value={pop} isOptional onChange={setPop} />
      <NumberInput label="At least" min={0} max={10000} allowDecimal={false} w={90} value={least} onChange={setLeast} />
      <NumberInput label="At most" min={0} max={10000} allowDecimal={false} w={90} placeholder="no limit" value={most} onChange={setMost} />
      <Switch label="Pin" mb={8} checked={isPinned} onChange={(event) => setPinned(event.currentTarget.checked)} />
      <Button disabled={!model} onClick={save}>
        Set override
      </Button>
    </Group>
  );
}

function Reserved() {
  const { changePlatform } = usePermissions();
  const { data, error, refetch } = useReservations();
  const changes = useRuleChanges();
  const columns: Column<Reservation>[] = [
    { id: "account", header: "Account", sortBy: (row) => row.account_id, cell: (row) => <Name value={row.account_id} mono /> },
    ...MODEL_AND_POP,
    { id: "tokens", header: "Tokens per second", align: "right", cell: (row) => <Num value={row.tokens_per_s} /> },
  ];
  if (changePlatform) {
    columns.push({
      id: "actions",
      header: "",
      align: "right",
      cell: (row) => (
        <ActionIcon
          aria-label={`Release the capacity of ${row.model}`}
          onClick={() =>
            confirmAction({
              title: "Release capacity",
              object: row.model,
              consequence: "The account's calls then share the capacity of all others.",
              confirm: "Release",
              action: () => changes.release(row),
              done: "The capacity is released",
            })
          }
        >
          <IconTrash size={14} />
        </ActionIcon>
      ),
    });
  }
  return (
    <Panel title="Reserved capacity" description="Kept for an account in addition to the measured demand" isFlush>
      <DataTable
        label="Reserved capacity"
        columns={columns}
        rows={data}
        rowId={(row) => `${row.account_id} ${row.model} ${row.pop}`}
        error={error}
        onRetry={() => void refetch()}
        sortParameter="reserved"
        empty={<EmptyState title="No reserved capacity">Accounts share all replicas.</EmptyState>}
      />
      {changePlatform && <ReservationForm />}
    </Panel>
  );
}

function ReservationForm() {
  const changes = useRuleChanges();
  const accounts = useAccounts();
  const [accountId, setAccountId] = useState<string | null>(null);
  const [model, setModel] = useState<string | null>(null);
  const [pop, setPop] = useState("");
  const [tokens, setTokens] = useState<number | string>(1000);
  const save = () => {
    if (!accountId || !model) return;
    const reservation = { account_id: accountId, model, pop, tokens_per_s: Number(tokens) };
    void runAction(() => changes.reserve(reservation), "The capacity is reserved");
  };
  return (
    <Group align="end" gap="xs" p="md">
      <Select
        label="Account"
        placeholder="Choose an account"
        data={(accounts.data ?? []).map((account) => ({ value: account.id, label: account.name.slice(0, 80) }))}
        value={accountId}
        searchable
        flex="1 1 160px"
        onChange={setAccountId}
      />
      <ModelSelect label="Model to reserve" value={model} onChange={setModel} />
      <PopSelect label="PoP to reserve" value={pop} onChange={setPop} />
      <NumberInput label="Tokens per second" min={1} w={150} value={tokens} onChange={setTokens} />
      <Button disabled={!accountId || !model || !pop || Number(tokens) <= 0} onClick={save}>
        Reserve
      </Button>
    </Group>
  );
}

const DIFFERENCES: Column<Difference>[] = [
  ...MODEL_AND_POP,
  { id: "before", header: "Replicas now", align: "right", cell: (row) => <Num value={row.num_before} /> },
  { id: "after", header: "Then", align: "right", cell: (row) => <Num value={row.num_after} /> },
  { id: "reason", header: "Reason", isWideOnly: true, cell: (row) => <Reason text={row.reason} /> },
];

function WhatIf() {
  const [lost, setLost] = useState("");
  const [added, setAdded] = useState("");
  const [numNodes, setNumNodes] = useState<number | string>(2);
  const [found, setFound] = useState<{ title: string; comparison: Comparison } | null>(null);
  const compare = async (title: string, request: Promise<Comparison>) => {
    try {
      setFound({ title, comparison: await request });
    } catch (error) {
      showError(error);
    }
  };
  return (
    <Panel title="What if" description="Compares the plan of the present with that of another fleet; changes nothing">
      <Stack gap="md">
        <Group align="end" gap="xs">
          <PopSelect label="PoP to lose" value={lost} onChange={setLost} />
          <Button variant="default" disabled={!lost} onClick={() => void compare(`Without ${lost}`, compareWithoutPop(lost))}>
            Lose it
          </Button>
          <TextInput label="PoP to add" placeholder="such as mad" w={150} value={added} onChange={(event) => setAdded(event.currentTarget.value)} />
          <NumberInput label="Nodes" min={1} max={1000} allowDecimal={false} w={90} value={numNodes} onChange={setNumNodes} />
          <Button
            variant="default"
            disabled={!POP.test(added)}
            onClick={() => void compare(`With ${added}`, compareWithPop(added, Number(numNodes)))}
          >
            Add it
          </Button>
        </Group>
        {found && (
          <>
            <Text fw={600}>{found.title}</Text>
            <DataTable
              label="Differences"
              columns={DIFFERENCES}
              rows={found.comparison.differences}
              rowId={(row) => `${row.model} ${row.pop}`}
              sortParameter="differences"
              empty={<EmptyState title="The plan stays the same">No replica would move.</EmptyState>}
            />
            {found.comparison.unplaced.map((row) => (
              <Text size="sm" c="red" key={`${row.model} ${row.pop}`} className="name">
                {row.reason}
              </Text>
            ))}
          </>
        )}
      </Stack>
    </Panel>
  );
}
