/** Who changed what, newest first, and the proof that the log is complete. */

import { Alert, Autocomplete, Code, Group, Stack, Text } from "@mantine/core";
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { client, page, result } from "@/api/client";
import type { Session } from "@/api/shapes";
import { useAccounts, useChosenAccountId, usePermissions, useSession } from "@/app/session";
import { type Column, DataTable } from "@/components/DataTable";
import { EmptyState } from "@/components/EmptyState";
import { ErrorState } from "@/components/ErrorState";
import { IconAlertTriangle, IconShieldCheck } from "@/components/icons";
import { PageHeader } from "@/components/PageHeader";
import { Pager, usePageNumber } from "@/components/Pager";
import { Panel } from "@/components/Panel";
import { Missing, Name, Num, Time } from "@/components/values";
import { useFilters } from "@/lib/query-state";

interface Entry {
  id: string;
  action: { type: string; result: boolean };
  actor: { id: string; type: string };
  interface: string;
  metadata: { detail: unknown };
  owner: { id: string | null };
  resource: { id: string; type: string };
  when: string;
  sequence: number | null;
}

interface Verification {
  ok: boolean;
  num_entries: number;
  detail: string | null;
}

const DEFAULTS = { action: "", page: "1" };
const PER_PAGE = 50;
const KINDS = ["account", "api_token", "user", "membership", "budget", "model", "alias", "finetune", "webhook_key", "operator", "session"];

function detailText(detail: unknown): string {
  if (detail === null || detail === undefined || detail === "") return "";
  return typeof detail === "string" ? detail : JSON.stringify(detail);
}

function actorName(entry: Entry, session: Session): string {
  return entry.actor.id === session.user_id ? `${session.email} (you)` : entry.actor.id;
}

export default function Audit() {
  const session = useSession();
  const accountId = useChosenAccountId();
  const { platform } = usePermissions();
  const accounts = useAccounts();
  const [filters, setFilters] = useFilters(DEFAULTS);
  const number = usePageNumber();
  const { data, error, refetch } = useQuery({
    queryKey: ["audit", accountId, filters.action, number],
    queryFn: () => {
      const query = { page: number, per_page: PER_PAGE, "action.type": filters.action };
      if (accountId === null) return page<Entry>(client.GET("/client/v4/audit_logs", { params: { query } }));
      const params = { path: { account_id: accountId }, query };
      return page<Entry>(client.GET("/client/v4/accounts/{account_id}/audit_logs", { params }));
    },
    placeholderData: keepPreviousData,
    refetchInterval: 30_000,
  });
  const names = new Map((accounts.data ?? []).map((account) => [account.id, account.name]));
  const columns: Column<Entry>[] = [
    { id: "when", header: "When", cell: (entry) => <Time value={entry.when} />, width: 170 },
    { id: "action", header: "Action", cell: (entry) => <Name value={entry.action.type} mono maxWidth={220} />, width: 220 },
    { id: "actor", header: "Who", cell: (entry) => <Name value={actorName(entry, session)} maxWidth={280} /> },
    { id: "interface", header: "By", cell: (entry) => entry.interface, isWideOnly: true },
    { id: "resource", header: "Object", cell: (entry) => (entry.resource.id ? <Name value={entry.resource.id} mono maxWidth={280} /> : <Missing />), isWideOnly: true },
    ...(accountId === null
      ? [
          {
            id: "account",
            header: "Account",
            isWideOnly: true,
            cell: (entry: Entry) => (entry.owner.id ? <Name value={names.get(entry.owner.id) ?? entry.owner.id} maxWidth={200} /> : <Missing />),
          },
        ]
      : []),
    {
      id: "detail",
      header: "Detail",
      isWideOnly: true,
      cell: (entry) => (detailText(entry.metadata.detail) ? <Name value={detailText(entry.metadata.detail)} maxWidth={360} /> : <Missing />),
    },
  ];
  return (
    <Stack gap="md">
      <PageHeader title="Audit" description="Every change to accounts, credentials, models and settings, with who made it." />
      {platform && <VerificationState />}
      <Panel isFlush>
        <Group m="sm">
          <Autocomplete
            aria-label="Action"
            placeholder="All actions"
            w={260}
            data={KINDS}
            defaultValue={filters.action}
            onOptionSubmit={(value) => setFilters({ action: value, page: null })}
            onBlur={(event) => setFilters({ action: event.currentTarget.value.trim(), page: null })}
            onKeyDown={(event) => event.key === "Enter" && setFilters({ action: event.currentTarget.value.trim(), page: null })}
          />
          <Text size="xs" c="dimmed">
            A kind of object such as <Code>api_token</Code>, or an action such as <Code>api_token.roll</Code>
          </Text>
        </Group>
        <DataTable
          label="Audit log"
          columns={columns}
          rows={data?.items}
          rowId={(entry) => entry.id}
          error={error}
          onRetry={() => void refetch()}
          empty={
            <EmptyState icon={IconShieldCheck} title="No entry">
              {filters.action ? "No such action is in the log. Clear the filter to see all actions." : "Changes appear here as they are made."}
            </EmptyState>
          }
        />
      </Panel>
      <Pager info={data?.info} noun="entries" />
    </Stack>
  );
}

/** Each entry contains the digest of the one before; the gateway checks the whole chain. */
function VerificationState() {
  const { data, error, refetch } = useQuery({
    queryKey: ["audit-verification"],
    queryFn: () => result<Verification>(client.GET("/client/v4/audit_logs/verification")),
    staleTime: 60_000,
  });
  if (error) return <ErrorState error={error} title="The audit log could not be verified" onRetry={() => void refetch()} />;
  if (!data) return null;
  if (!data.ok) {
    return (
      <Alert color="red" icon={<IconAlertTriangle />} title="The audit log was altered">
        {data.detail ?? "Its entries do not form an unbroken chain."} Keep the database as it is and compare it with a backup.
      </Alert>
    );
  }
  return (
    <Group gap={6} c="teal">
      <IconShieldCheck size={16} />
      <Text size="sm">
        Verified: the chain of <Num value={data.num_entries} /> entries is unbroken.
      </Text>
    </Group>
  );
}
