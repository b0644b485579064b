/** Which accounts may call a model. */

import { Group, Switch, TextInput } from "@mantine/core";
import { useQueries, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { client, result } from "@/api/client";
import type { Account } from "@/api/shapes";
import { useAccounts, usePermissions } from "@/app/session";
import { runAction } from "@/components/confirm";
import { type Column, DataTable } from "@/components/DataTable";
import { EmptyState } from "@/components/EmptyState";
import { IconSearch } from "@/components/icons";
import { Panel } from "@/components/Panel";
import { Name } from "@/components/values";

const MAX_ACCOUNTS = 50; // each needs one request

interface Row {
  account: Account;
  /** Undefined until it is known. */
  isEnabled: boolean | undefined;
}

export function ModelAccess({ name }: { name: string }) {
  const { changePlatform } = usePermissions();
  const accounts = useAccounts();
  const queries = useQueryClient();
  const [search, setSearch] = useState("");
  const words = search.trim().toLowerCase();
  const found = (accounts.data ?? []).filter((account) => `${account.name} ${account.id}`.toLowerCase().includes(words));
  const shown = found.slice(0, MAX_ACCOUNTS);
  const disabled = useQueries({
    queries: shown.map((account) => ({
      queryKey: ["disabled models", account.id],
      queryFn: () =>
        result<{ model: string }[]>(
          client.GET("/client/v4/accounts/{account_id}/ai/models/disabled", { params: { path: { account_id: account.id } } }),
        ),
    })),
  });
  const rows = shown.map((account, index): Row => {
    const models = disabled[index]?.data;
    return { account, isEnabled: models && !models.some((each) => each.model === name) };
  });
  const change = async (account: Account, isEnabled: boolean) => {
    const params = { path: { account_id: account.id, model: name } };
    const path = "/client/v4/accounts/{account_id}/ai/models/disabled/{model}";
    await runAction(
      () => result(isEnabled ? client.DELETE(path, { params }) : client.PUT(path, { params })),
      `${account.name.slice(0, 80)} ${isEnabled ? "may call" : "may no longer call"} the model`,
    );
    await queries.invalidateQueries({ queryKey: ["disabled models", account.id] });
  };
  const columns: Column<Row>[] = [
    { id: "account", header: "Account", sortBy: (row) => row.account.name, cell: (row) => <Name value={row.account.name} /> },
    {
      id: "enabled",
      header: "May call the model",
      width: 180,
      cell: (row) => (
        <Switch
          aria-label={`${row.account.name.slice(0, 100)} may call the model`}
          checked={row.isEnabled ?? false}
          disabled={!changePlatform || row.isEnabled === undefined}
          onChange={(event) => void change(row.account, event.currentTarget.checked)}
        />
      ),
    },
  ];
  const hint = found.length > MAX_ACCOUNTS ? `The first ${MAX_ACCOUNTS} of ${found.length} accounts; search for others.` : undefined;
  return (
    <Panel title="Access" description={hint ?? "A disabled model is refused for the account."} isFlush>
      <Group px="md" pb="sm">
        <TextInput
          aria-label="Find an account"
          placeholder="Find an account"
          leftSection={<IconSearch size={14} />}
          value={search}
          onChange={(event) => setSearch(event.currentTarget.value)}
        />
      </Group>
      <DataTable
        label="Accounts"
        columns={columns}
        rows={accounts.data && rows}
        rowId={(row) => row.account.id}
        error={accounts.error ?? disabled.find((each) => each.error)?.error}
        defaultSort="account"
        empty={<EmptyState title="No account matches" />}
      />
    </Panel>
  );
}
