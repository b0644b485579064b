/** "Why this node": how a call of an account would be placed now, filter by filter. */

import { Anchor, Badge, Button, Group, List, Select, Stack, Text, TextInput, Timeline } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { Link, useLocation } from "react-router";
import { useAccountId, useAccounts } from "@/app/session";
import { CopyButton } from "@/components/CopyButton";
import { type Column, DataTable } from "@/components/DataTable";
import { EmptyState } from "@/components/EmptyState";
import { ErrorState } from "@/components/ErrorState";
import { IconFilter, IconServer } from "@/components/icons";
import { Panel } from "@/components/Panel";
import { Missing, Name, Num } from "@/components/values";
import { useFilters } from "@/lib/query-state";
import { useCallableNames } from "@/screens/models/catalog";
import { explainPlacement, type Explanation } from "./queries";

const FILTERS = { of: "", for_model: "", session: "", prompt: "" };
const MAX_NAMED = 12; // removed nodes that one step names
const SESSION = /^[A-Za-z0-9._:-]{0,128}$/;

export function Placement() {
  const [filters, setFilters] = useFilters(FILTERS);
  const chosenId = useAccountId();
  const accounts = useAccounts();
  const accountId = filters.of || chosenId;
  const names = useCallableNames();
  const [session, setSession] = useState(filters.session);
  const [prompt, setPrompt] = useState(filters.prompt);
  const query = useQuery({
    queryKey: ["placement", accountId, filters],
    queryFn: () => explainPlacement(accountId ?? "", filters.for_model, filters.session, filters.prompt),
    enabled: accountId !== null && filters.for_model !== "",
    staleTime: 0,
  });
  const sessionError = SESSION.test(session) ? null : "Use letters, digits and . _ : - only.";
  return (
    <Stack gap="md">
      <Panel>
        <form
          onSubmit={(event) => {
            event.preventDefault();
            if (sessionError) return;
            setFilters({ session, prompt });
            void query.refetch();
          }}
        >
          <Group align="end" gap="sm">
            <Select
              label="Account"
              data={(accounts.data ?? []).map((account) => ({ value: account.id, label: account.name.slice(0, 100) }))}
              value={accountId}
              searchable
              allowDeselect={false}
              flex="1 1 180px"
              onChange={(id) => setFilters({ of: id })}
            />
            <Select
              label="Model"
              placeholder="Choose a model"
              data={[...(names.data ?? [])].sort()}
              value={filters.for_model || null}
              searchable
              flex="2 1 240px"
              onChange={(name) => setFilters({ for_model: name })}
            />
            <TextInput
              label="Session"
              placeholder="value of x-session-affinity"
              value={session}
              error={sessionError}
              flex="1 1 180px"
              onChange={(event) => setSession(event.currentTarget.value)}
            />
            <TextInput
              label="Prompt begins with"
              placeholder="used without a session"
              value={prompt}
              maxLength={200}
              flex="1 1 180px"
              onChange={(event) => setPrompt(event.currentTarget.value)}
            />
            <Button type="submit" loading={query.isFetching} disabled={filters.for_model === ""}>
              Explain
            </Button>
          </Group>
        </form>
      </Panel>
      {query.error ? (
        <ErrorState error={query.error} title="The placement could not be explained" onRetry={() => void query.refetch()} />
      ) : query.data ? (
        <Result explanation={query.data} />
      ) : (
        <Panel>
          <EmptyState title="Choose an account and a model" icon={IconServer}>
            The result says which node a call would run on now, and why not on the others.
          </EmptyState>
        </Panel>
      )}
    </Stack>
  );
}

function Result({ explanation }: { explanation: Explanation }) {
  const best = explanation.ranked[0];
  return (
    <Stack gap="md">
      <Panel title="Result">
        {best ? (
          <Text size="sm">
            A call for <span className="mono name">{explanation.model}</span> would run on{" "}
            <Text span fw={600}>
              {best.node_id}
            </Text>{" "}
            in {best.pop}: {best.reason}.
          </Text>
        ) : (
          <Text size="sm">No node may take the call. The steps below say why.</Text>
        )}
        <Group gap={4} mt={4}>
          <Text size="xs" c="dimmed">
            Affinity key <span className="mono">{explanation.affinity}</span>
          </Text>
          <CopyButton value={explanation.affinity} label="Copy affinity key" />
        </Group>
      </Panel>
      <Panel title="Filters" description="Nodes that were removed, in the order of the filters">
        <Timeline bulletSize={18} lineWidth={2} active={-1}>
          {explanation.steps.map((step) => (
            <Timeline.Item key={step.filter} bullet={<IconFilter size={10} />} title={step.filter.replaceAll("_", " ")}>
              <RemovedNodes removed={step.removed} />
            </Timeline.Item>
          ))}
        </Timeline>
      </Panel>
      <Panel title="Remaining nodes" description="Best first" isFlush>
        <Ranking ranked={explanation.ranked} />
      </Panel>
    </Stack>
  );
}

function RemovedNodes({ removed }: { removed: Explanation["steps"][number]["removed"] }) {
  if (removed.length === 0) {
    return (
      <Text size="xs" c="dimmed">
        removes no node
      </Text>
    );
  }
  return (
    <List size="xs" spacing={2} listStyleType="none">
      {removed.slice(0, MAX_NAMED).map((each) => (
        <List.Item key={each.node_id}>
          <NodeLink nodeId={each.node_id} />: {each.reason}
        </List.Item>
      ))}
      {removed.length > MAX_NAMED && <List.Item>and {removed.length - MAX_NAMED} more</List.Item>}
    </List>
  );
}

type RankedNode = Explanation["ranked"][number];

const RANKING: Column<RankedNode & { rank: number }>[] = [
  { id: "rank", header: "#", width: 50, cell: (node) => node.rank },
  { id: "node", header: "Node", cell: (node) => <NodeLink nodeId={node.node_id} /> },
  { id: "pop", header: "PoP", cell: (node) => <Name value={node.pop} /> },
  { id: "tier", header: "Tier", align: "right", cell: (node) => node.tier },
  {
    id: "hot",
    header: "Model",
    cell: (node) => <Badge color={node.is_hot ? "teal" : "gray"}>{node.is_hot ? "loaded" : "not loaded"}</Badge>,
  },
  {
    id: "load",
    header: "Queued tokens",
    align: "right",
    isWideOnly: true,
    cell: (node) => (node.load_tokens === null ? <Missing /> : <Num value={node.load_tokens} />),
  },
  {
    id: "predicted",
    header: "First token",
    align: "right",
    isWideOnly: true,
    cell: (node) => (node.predicted_s === null ? <Missing /> : `${node.predicted_s.toFixed(3)} s`),
  },
  { id: "reason", header: "Reason", isWideOnly: true, cell: (node) => <Text size="xs">{node.reason}</Text> },
];

function Ranking({ ranked }: { ranked: RankedNode[] }) {
  return (
    <DataTable
      label="Remaining nodes"
      columns={RANKING}
      rows={ranked.map((node, index) => ({ ...node, rank: index + 1 }))}
      rowId={(node) => node.node_id}
      sortParameter="ranking"
      empty={<EmptyState title="No node remains">Every node was removed by a filter above.</EmptyState>}
    />
  );
}

function NodeLink({ nodeId }: { nodeId: string }) {
  const { search } = useLocation();
  const account = new URLSearchParams(search).get("account");
  const query = new URLSearchParams({ ...(account ? { account } : {}), node: nodeId });
  return (
    <Anchor component={Link} size="xs" to={{ pathname: "/fleet", search: `?${query}` }}>
      {nodeId}
    </Anchor>
  );
}
