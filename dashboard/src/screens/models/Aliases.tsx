/** Model ids that other models serve. */

import { ActionIcon, Button, Group, Modal, Select, Stack, TextInput } from "@mantine/core";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { client, result } from "@/api/client";
import { usePermissions } from "@/app/session";
import { confirmAction } from "@/components/confirm";
import { type Column, DataTable } from "@/components/DataTable";
import { EmptyState } from "@/components/EmptyState";
import { ErrorState } from "@/components/ErrorState";
import { IconEdit, IconLink, IconPlus, IconTrash } from "@/components/icons";
import { Panel } from "@/components/Panel";
import { Name } from "@/components/values";
import { useCallableNames } from "./catalog";
import { ModelLink } from "./links";
import { type Alias, useAliases } from "./platform";

export function Aliases() {
  const aliases = useAliases();
  const { changePlatform } = usePermissions();
  const queries = useQueryClient();
  const [edited, setEdited] = useState<Partial<Alias> | null>(null);
  const remove = (alias: Alias) =>
    confirmAction({
      title: "Remove alias",
      object: alias.name,
      consequence: `Calls to this name no longer reach ${alias.target}.`,
      confirm: "Remove",
      action: async () => {
        await result(client.DELETE("/client/v4/aliases/{model}", { params: { path: { model: alias.name } }, headers: { "if-match": `"${alias.version}"` } }));
        await queries.invalidateQueries({ queryKey: ["aliases"] });
      },
      done: "The alias is removed",
    });
  const columns: Column<Alias>[] = [
    { id: "name", header: "Alias", sortBy: (alias) => alias.name, cell: (alias) => <Name value={alias.name} /> },
    { id: "target", header: "Model", sortBy: (alias) => alias.target, cell: (alias) => <ModelLink name={alias.target} /> },
  ];
  if (changePlatform) {
    columns.push({
      id: "actions",
      header: "",
      align: "right",
      width: 80,
      cell: (alias) => (
        <Group gap={2} justify="flex-end" wrap="nowrap">
          <ActionIcon aria-label={`Change the alias ${alias.name}`} onClick={() => setEdited(alias)}>
            <IconEdit size={14} />
          </ActionIcon>
          <ActionIcon aria-label={`Remove the alias ${alias.name}`} onClick={() => remove(alias)}>
            <IconTrash size={14} />
          </ActionIcon>
        </Group>
      ),
    });
  }
  const add = changePlatform && (
    <Button leftSection={<IconPlus size={14} />} onClick={() => setEdited({})}>
      Add alias
    </Button>
  );
  return (
    <Panel title="Aliases" description="Names that clients may call, and the model that serves each" actions={add} isFlush>
      <DataTable
        label="Aliases"
        columns={columns}
        rows={aliases.data}
        rowId={(alias) => alias.name}
        error={aliases.error}
        onRetry={() => void aliases.refetch()}
        defaultSort="name"
        empty={
          <EmptyState title="There are no aliases" icon={IconLink}>
            With an alias, code that names a model of another platform runs unchanged.
          </EmptyState>
        }
      />
      <Modal opened={edited !== null} onClose={() => setEdited(null)} title={edited?.name ? "Change alias" : "Add alias"}>
        {edited && <AliasForm alias={edited} onDone={() => setEdited(null)} />}
      </Modal>
    </Panel>
  );
}

/** A form for an alias. An alias with a version is changed only if nobody else has changed it meanwhile. */
export function AliasForm({ alias, onDone }: { alias: Partial<Alias>; onDone: () => void }) {
  const queries = useQueryClient();
  const names = useCallableNames();
  const [name, setName] = useState(alias.name ?? "");
  const [target, setTarget] = useState<string | null>(alias.target ?? null);
  const save = useMutation({
    mutationFn: () =>
      result(
        client.PUT("/client/v4/aliases/{model}", {
          params: { path: { model: name } },
          body: { target: target ?? "" },
          headers: alias.version ? { "if-match": `"${alias.version}"` } : {},
        }),
      ),
    onSuccess: async () => {
      await queries.invalidateQueries({ queryKey: ["aliases"] });
      await queries.invalidateQueries({ queryKey: ["model details"] });
      onDone();
    },
  });
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault();
        save.mutate();
      }}
    >
      <Stack gap="sm">
        <TextInput
          label="Alias"
          placeholder="@cf/meta/llama-4-scout-17b-16e-instruct"
          required
          readOnly={alias.version !== undefined}
          value={name}
          onChange={(event) => setName(event.currentTarget.value)}
        />
        <Select
          label="Model"
          placeholder="Choose a model"
          required
          searchable
          data={[...new Set([...(names.data ?? []), ...(target ? [target] : [])])].sort()}
          value={target}
          onChange={setTarget}
        />
        {save.error && <ErrorState error={save.error} title="The alias was not saved" />}
        <Group justify="flex-end">
          <Button variant="default" onClick={onDone}>
            Cancel
          </Button>
          <Button type="submit" loading={save.isPending} disabled={name === "" || !target}>
            Save
          </Button>
        </Group>
      </Stack>
    </form>
  );
}
