/** The tokens of an account. */

import { ActionIcon, Anchor, Button, Menu, Text, TextInput } from "@mantine/core";
import { modals } from "@mantine/modals";
import { useQueryClient } from "@tanstack/react-query";
import { useMemo } from "react";
import { Link, useLocation } from "react-router";
import { client, result } from "@/api/client";
import { accountQuery } from "@/app/Shell";
import { usePermissions } from "@/app/session";
import { confirmAction } from "@/components/confirm";
import { type Column, DataTable } from "@/components/DataTable";
import { EmptyState } from "@/components/EmptyState";
import { IconDots, IconEdit, IconKey, IconPlus, IconRefresh, IconSearch, IconTrash } from "@/components/icons";
import { PageHeader } from "@/components/PageHeader";
import { Panel } from "@/components/Panel";
import { SecretOnce } from "@/components/SecretOnce";
import { Missing, Name, State, Time } from "@/components/values";
import { useFilters } from "@/lib/query-state";
import { useTokens } from "./queries";
import type { ApiToken } from "./shapes";

const DEFAULTS = { search: "" };

export function TokenList({ accountId }: { accountId: string }) {
  const { changeAccount } = usePermissions();
  const mayChange = changeAccount(accountId);
  const search = accountQuery(useLocation().search);
  const [filters, setFilters] = useFilters(DEFAULTS);
  const { data, error, refetch } = useTokens(accountId);
  const columns = useColumns(accountId, search, mayChange);
  const shown = useMemo(
    () => data?.filter((token) => `${token.name} ${token.id}`.toLowerCase().includes(filters.search.toLowerCase())),
    [data, filters.search],
  );
  const createButton = mayChange && (
    <Button component={Link} to={{ pathname: "/tokens/new", search }} leftSection={<IconPlus size={14} />}>
      Create token
    </Button>
  );
  return (
    <>
      <PageHeader
        title="API tokens"
        description="Credentials with which programs call the account's models and management routes."
        actions={createButton}
      />
      <Panel isFlush>
        {(data?.length ?? 0) > 5 && (
          <TextInput
            m="sm"
            maw={320}
            aria-label="Find a token"
            placeholder="Find by name or id"
            leftSection={<IconSearch size={14} />}
            value={filters.search}
            onChange={(event) => setFilters({ search: event.currentTarget.value })}
          />
        )}
        <DataTable
          label="API tokens"
          columns={columns}
          rows={shown}
          rowId={(token) => token.id}
          error={error}
          onRetry={() => void refetch()}
          empty={
            filters.search ? (
              <EmptyState title="No token matches">Change the search, or clear it to see all tokens.</EmptyState>
            ) : (
              <EmptyState icon={IconKey} title="No API token yet" action={createButton}>
                Create a token to call the account's models from a program. Its secret is shown once.
              </EmptyState>
            )
          }
        />
      </Panel>
    </>
  );
}

function useColumns(accountId: string, search: string, mayChange: boolean): Column<ApiToken>[] {
  return useMemo(
    () => [
      {
        id: "name",
        header: "Name",
        sortBy: (token) => token.name,
        cell: (token) => (
          <Anchor component={Link} to={{ pathname: `/tokens/${token.id}`, search }} size="sm">
            <Name value={token.name} />
          </Anchor>
        ),
      },
      { id: "status", header: "Status", sortBy: (token) => token.status, cell: (token) => <State value={token.status} /> },
      { id: "permissions", header: "Permissions", cell: (token) => <Permissions token={token} />, isWideOnly: true },
      { id: "models", header: "Models", cell: (token) => modelsText(token), isWideOnly: true },
      {
        id: "used",
        header: "Last used",
        sortBy: (token) => token.last_used_on,
        cell: (token) => (token.last_used_on ? <Time value={token.last_used_on} relative /> : <Text span size="sm" c="dimmed">never</Text>),
        isWideOnly: true,
      },
      {
        id: "expires",
        header: "Expires",
        sortBy: (token) => token.expires_on,
        cell: (token) => (token.expires_on ? <Time value={token.expires_on} relative /> : <Text span size="sm" c="dimmed">never</Text>),
        isWideOnly: true,
      },
      {
        id: "created",
        header: "Created",
        sortBy: (token) => token.issued_on,
        cell: (token) => <Time value={token.issued_on} relative />,
        isWideOnly: true,
      },
      {
        id: "actions",
        header: "Actions",
        align: "right",
        cell: (token) => (mayChange ? <TokenMenu accountId={accountId} token={token} search={search} /> : null),
      },
    ],
    [accountId, search, mayChange],
  );
}

function Permissions({ token }: { token: ApiToken }) {
  const names = token.policies.flatMap((policy) =>
    policy.permission_groups.map((group) => (policy.effect === "deny" ? `not ${group.name}` : group.name)),
  );
  return names.length === 0 ? <Missing /> : <Name value={names.join(", ")} maxWidth={280} />;
}

function modelsText(token: ApiToken) {
  if (token.models === undefined) return "all";
  return <span title={token.models.join(", ")}>{token.models.length === 0 ? "none" : token.models.length}</span>;
}

export function TokenMenu({ accountId, token, search }: { accountId: string; token: ApiToken; search: string }) {
  const queries = useQueryClient();
  const params = { path: { account_id: accountId, api_token_id: token.id } };
  const refresh = () => queries.invalidateQueries({ queryKey: ["tokens", accountId] });

  function roll() {
    confirmAction({
      title: "Roll the secret of an API token",
      object: token.name,
      consequence: "The token gets a new secret. The old secret stops working at once.",
      confirm: "Roll secret",
      action: async () => {
        const secret = await result<string>(
          client.PUT("/client/v4/accounts/{account_id}/tokens/{api_token_id}/value", { params }),
        );
        modals.open({
          title: "New secret",
          size: "lg",
          closeOnClickOutside: false,
          children: <SecretOnce label={`Secret of ${token.name.slice(0, 100)}`} value={secret} />,
        });
        await refresh();
      },
    });
  }

  function revoke() {
    confirmAction({
      title: "Revoke API token",
      object: token.name,
      consequence: "Programs that use the token are refused within seconds. This cannot be undone.",
      confirm: "Revoke token",
      done: "The token is revoked.",
      action: async () => {
        await client.DELETE("/client/v4/accounts/{account_id}/tokens/{api_token_id}", { params });
        await refresh();
      },
    });
  }

  return (
    <Menu position="bottom-end">
      <Menu.Target>
        <ActionIcon aria-label={`Actions for ${token.name.slice(0, 100)}`}>
          <IconDots />
        </ActionIcon>
      </Menu.Target>
      <Menu.Dropdown>
        <Menu.Item component={Link} to={{ pathname: `/tokens/${token.id}`, search }} leftSection={<IconEdit size={14} />}>
          Edit
        </Menu.Item>
        <Menu.Item leftSection={<IconRefresh size={14} />} onClick={roll}>
          Roll secret
        </Menu.Item>
        <Menu.Item color="red" leftSection={<IconTrash size={14} />} onClick={revoke}>
          Revoke
        </Menu.Item>
      </Menu.Dropdown>
    </Menu>
  );
}
