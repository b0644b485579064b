/** Models that an account may not call. */

import { Autocomplete, Button, Group } from "@mantine/core";
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { client, result } from "@/api/client";
import { usePermissions } from "@/app/session";
import { runAction } from "@/components/confirm";
import { type Column, DataTable } from "@/components/DataTable";
import { EmptyState } from "@/components/EmptyState";
import { IconBox } from "@/components/icons";
import { Panel } from "@/components/Panel";
import { Name } from "@/components/values";
import { useModelNames } from "@/screens/tokens/queries";

interface Disabled {
  model: string;
}

export function DisabledModels({ accountId }: { accountId: string }) {
  const { changePlatform } = usePermissions();
  const queries = useQueryClient();
  const models = useModelNames(accountId);
  const [name, setName] = useState("");
  const { data, error, refetch } = useQuery({
    queryKey: ["disabled-models", accountId],
    queryFn: () => {
      const params = { path: { account_id: accountId } };
      return result<Disabled[]>(client.GET("/client/v4/accounts/{account_id}/ai/models/disabled", { params }));
    },
  });

  async function change(model: string, method: "PUT" | "DELETE") {
    const path = "/client/v4/accounts/{account_id}/ai/models/disabled/{model}";
    const params = { path: { account_id: accountId, model } };
    const send = () => (method === "PUT" ? client.PUT(path, { params }) : client.DELETE(path, { params }));
    const done = method === "PUT" ? `${model} is disabled for this account.` : `${model} is enabled again.`;
    if (await runAction(send, done)) setName("");
    await queries.invalidateQueries({ queryKey: ["disabled-models", accountId] });
  }

  const columns: Column<Disabled>[] = [
    { id: "model", header: "Model", sortBy: (row) => row.model, cell: (row) => <Name value={row.model} /> },
    {
      id: "actions",
      header: "Actions",
      align: "right",
      cell: (row) =>
        changePlatform && (
          <Button variant="default" onClick={() => void change(row.model, "DELETE")}>
            Enable
          </Button>
        ),
    },
  ];
  return (
    <Panel title="Disabled models" description="Calls of this account to these models are refused." isFlush>
      {changePlatform && (
        <Group px="md" pb="sm" gap="xs" align="end">
          <Autocomplete
            label="Model"
            placeholder="@cf/author/model"
            data={models.data ?? []}
            value={name}
            onChange={setName}
            w={{ base: "100%", xs: 360 }}
          />
          <Button disabled={!name.trim()} onClick={() => void change(name.trim(), "PUT")} size="sm">
            Disable
          </Button>
        </Group>
      )}
      <DataTable
        label="Disabled models"
        columns={columns}
        rows={data}
        rowId={(row) => row.model}
        error={error}
        onRetry={() => void refetch()}
        empty={
          <EmptyState icon={IconBox} title="All models are enabled">
            Disable a model to refuse this account's calls to it.
          </EmptyState>
        }
      />
    </Panel>
  );
}
