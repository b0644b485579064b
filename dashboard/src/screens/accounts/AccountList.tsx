/** All accounts that the user may read, and the user's invitations. */

import { Anchor, Button, Group, Modal, Stack, Text, TextInput } from "@mantine/core";
import { useForm } from "@mantine/form";
import { useDebouncedCallback } from "@mantine/hooks";
import { keepPreviousData, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { Link, useNavigate } from "react-router";
import { client, page, result } from "@/api/client";
import { SESSION_KEY, usePermissions } from "@/app/session";
import { runAction } from "@/components/confirm";
import { CopyButton } from "@/components/CopyButton";
import { type Column, DataTable } from "@/components/DataTable";
import { EmptyState } from "@/components/EmptyState";
import { ErrorState } from "@/components/ErrorState";
import { IconPlus, IconSearch, IconUsers } from "@/components/icons";
import { PageHeader } from "@/components/PageHeader";
import { Pager, usePageNumber } from "@/components/Pager";
import { Panel } from "@/components/Panel";
import { Name, Time } from "@/components/values";
import { useFilters } from "@/lib/query-state";
import type { AccountDetail, Invitation } from "./shapes";

const DEFAULTS = { name: "", new: "", page: "1" };
const PER_PAGE = 50;
const TYPING_MS = 250;

const COLUMNS: Column<AccountDetail>[] = [
  {
    id: "name",
    header: "Name",
    sortBy: (account) => account.name,
    cell: (account) => (
      <Anchor component={Link} to={{ pathname: `/accounts/${account.id}`, search: `?account=${account.id}` }} size="sm">
        <Name value={account.name} maxWidth={360} />
      </Anchor>
    ),
  },
  {
    id: "id",
    header: "Account id",
    isWideOnly: true,
    cell: (account) => (
      <Group gap={4} wrap="nowrap">
        <span className="mono">{account.id}</span>
        <CopyButton value={account.id} label="Copy account id" />
      </Group>
    ),
  },
  { id: "type", header: "Type", sortBy: (account) => account.type, cell: (account) => account.type },
  {
    id: "rules",
    header: "Data rules",
    isWideOnly: true,
    cell: ({ settings }) => {
      const places = [...(settings.region?.countries ?? []), ...(settings.region?.jurisdictions ?? [])];
      const rules = [places.length > 0 && `only in ${places.join(", ")}`, settings.retention === "zero" && "zero retention"];
      return rules.filter(Boolean).join(" · ") || <Text span c="dimmed" size="sm">none</Text>;
    },
  },
  {
    id: "created",
    header: "Created",
    sortBy: (account) => account.created_on,
    cell: (account) => <Time value={account.created_on} relative />,
  },
];

export function AccountList() {
  const { changePlatform } = usePermissions();
  const [filters, setFilters] = useFilters(DEFAULTS);
  const number = usePageNumber();
  const { data, error, refetch } = useQuery({
    queryKey: ["accounts", "page", filters.name, number],
    queryFn: () => {
      const query = { name: filters.name, page: number, per_page: PER_PAGE };
      return page<AccountDetail>(client.GET("/client/v4/accounts", { params: { query } }));
    },
    placeholderData: keepPreviousData,
  });
  const setName = useDebouncedCallback((name: string) => setFilters({ name, page: null }), TYPING_MS);
  const create = (
    <Button leftSection={<IconPlus size={14} />} onClick={() => setFilters({ new: "1" })}>
      Create account
    </Button>
  );
  return (
    <Stack gap="md">
      <PageHeader
        title="Accounts"
        description="An account owns API tokens, usage, budgets, batches and finetunes."
        actions={changePlatform && create}
      />
      <Invitations />
      <Panel isFlush>
        <TextInput
          m="sm"
          maw={320}
          aria-label="Find an account"
          placeholder="Find by name"
          leftSection={<IconSearch size={14} />}
          defaultValue={filters.name}
          onChange={(event) => setName(event.currentTarget.value)}
        />
        <DataTable
          label="Accounts"
          columns={COLUMNS}
          rows={data?.items}
          rowId={(account) => account.id}
          error={error}
          onRetry={() => void refetch()}
          empty={
            filters.name ? (
              <EmptyState title="No account matches">Change the search, or clear it to see all accounts.</EmptyState>
            ) : (
              <EmptyState icon={IconUsers} title="No account yet" action={changePlatform && create}>
                Create an account for each team or customer, then invite its members.
              </EmptyState>
            )
          }
        />
      </Panel>
      <Pager info={data?.info} noun="accounts" />
      {filters.new && <CreateAccount onClose={() => setFilters({ new: null })} />}
    </Stack>
  );
}

function CreateAccount({ onClose }: { onClose: () => void }) {
  const navigate = useNavigate();
  const queries = useQueryClient();
  const [error, setError] = useState<unknown>(null);
  const [isBusy, setIsBusy] = useState(false);
  const form = useForm({
    initialValues: { name: "" },
    validate: { name: (name) => (name.trim() ? null : "Give the account a name.") },
  });

  async function create({ name }: { name: string }) {
    setIsBusy(true);
    setError(null);
    try {
      const account = await result<AccountDetail>(client.POST("/client/v4/accounts", { body: { name: name.trim() } }));
      await queries.invalidateQueries({ queryKey: ["accounts"] });
      await queries.invalidateQueries({ queryKey: SESSION_KEY });
      await navigate(`/accounts/${account.id}?account=${account.id}`);
    } catch (failure) {
      setError(failure);
      setIsBusy(false);
    }
  }

  return (
    <Modal opened onClose={onClose} title="Create account">
      <form onSubmit={form.onSubmit((values) => void create(values))} noValidate>
        <Stack gap="md">
          <TextInput label="Name" placeholder="Research team" required data-autofocus {...form.getInputProps("name")} />
          {error !== null && <ErrorState error={error} title="The account was not created" />}
          <Group justify="flex-end" gap="xs">
            <Button variant="default" onClick={onClose}>
              Cancel
            </Button>
            <Button type="submit" loading={isBusy}>
              Create account
            </Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  );
}

function Invitations() {
  const queries = useQueryClient();
  const { data } = useQuery({
    queryKey: ["invitations"],
    queryFn: () => page<Invitation>(client.GET("/client/v4/memberships", { params: { query: { status: "pending" } } })),
    retry: false,
  });
  if (!data || data.items.length === 0) return null;

  async function answer(invitation: Invitation, status: "accepted" | "rejected") {
    const params = { path: { membership_id: invitation.id } };
    const done = status === "accepted" ? "You are now a member." : "The invitation is declined.";
    const send = () => client.PUT("/client/v4/memberships/{membership_id}", { params, body: { status } });
    if (await runAction(send, done)) await queries.invalidateQueries();
  }

  return (
    <Panel title="Invitations">
      <Stack gap="xs">
        {data.items.map((invitation) => (
          <Group key={invitation.id} justify="space-between" gap="xs">
            <Text size="sm" component="div" miw={0}>
              <Name value={invitation.account.name} /> as {invitation.roles.join(", ")}
            </Text>
            <Group gap="xs">
              <Button onClick={() => void answer(invitation, "accepted")}>Accept</Button>
              <Button variant="default" onClick={() => void answer(invitation, "rejected")}>
                Decline
              </Button>
            </Group>
          </Group>
        ))}
      </Stack>
    </Panel>
  );
}
