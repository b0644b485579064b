/** LoRA adapters of the account, and the public ones that every account may use. */

import { ActionIcon, Badge, Button, Group, Stack, Tooltip } from "@mantine/core";
import { useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { Link, useLocation } from "react-router";
import { accountQuery } from "@/app/Shell";
import { useAccountId, usePermissions } from "@/app/session";
import { confirmAction } from "@/components/confirm";
import { CopyButton } from "@/components/CopyButton";
import { type Column, DataTable } from "@/components/DataTable";
import { EmptyState } from "@/components/EmptyState";
import { IconAdjustments, IconLock, IconMessageCircle, IconTrash, IconUpload } from "@/components/icons";
import { NoAccount } from "@/components/NoAccount";
import { PageHeader } from "@/components/PageHeader";
import { Panel } from "@/components/Panel";
import { Name, Time } from "@/components/values";
import { ModelLink } from "@/screens/models/links";
import { type Finetune, removeFinetune, useOwnFinetunes, usePublicFinetunes } from "./queries";
import { UploadFinetune } from "./UploadFinetune";

export default function Finetunes() {
  const accountId = useAccountId();
  const { runModels } = usePermissions();
  if (accountId !== null && !runModels(accountId)) {
    return (
      <>
        <PageHeader title="Finetunes" />
        <Panel>
          <EmptyState icon={IconLock} title="You cannot see the finetunes of this account">
            Only its administrators and developers may. Choose another account, or ask for an invitation.
          </EmptyState>
        </Panel>
      </>
    );
  }
  if (accountId === null) return <NoAccount title="Finetunes" />;
  return <Lists key={accountId} accountId={accountId} />;
}

function Lists({ accountId }: { accountId: string }) {
  const { runModels } = usePermissions();
  const canChange = runModels(accountId);
  const [uploaded, setUploaded] = useState<Finetune | "new" | null>(null);
  const own = useOwnFinetunes(accountId);
  const shared = usePublicFinetunes(accountId);
  const queries = useQueryClient();
  const remove = (finetune: Finetune) =>
    confirmAction({
      title: "Remove finetune",
      object: finetune.name,
      consequence: "Calls that select this adapter are refused within two seconds.",
      confirm: "Remove",
      action: async () => {
        await removeFinetune(accountId, finetune.id);
        await queries.invalidateQueries({ queryKey: ["finetunes", accountId] });
      },
      done: "The finetune is removed",
    });
  const columns = [...COLUMNS, actionColumn(canChange, setUploaded, remove)];
  const upload = canChange && (
    <Button leftSection={<IconUpload size={14} />} onClick={() => setUploaded("new")}>
      Upload a finetune
    </Button>
  );
  return (
    <>
      <PageHeader title="Finetunes" description="LoRA adapters that calls select with the field lora." actions={upload} />
      <Stack gap="md">
        <Panel title="This account" isFlush>
          <DataTable
            label="Finetunes of this account"
            columns={columns}
            rows={own.data}
            rowId={(finetune) => finetune.id}
            error={own.error}
            onRetry={() => void own.refetch()}
            defaultSort="name"
            empty={
              <EmptyState icon={IconAdjustments} title="The account has no finetunes" action={upload}>
                Upload an adapter in the format of PEFT: its configuration and its weights.
              </EmptyState>
            }
          />
        </Panel>
        <Panel title="Public" description="Of this platform, and well-known names of Workers AI" isFlush>
          <DataTable
            label="Public finetunes"
            columns={COLUMNS}
            rows={shared.data}
            rowId={(finetune) => finetune.id}
            error={shared.error}
            onRetry={() => void shared.refetch()}
            sortParameter="public_sort"
            defaultSort="name"
            empty={<EmptyState icon={IconAdjustments} title="There are no public finetunes" />}
          />
        </Panel>
      </Stack>
      <UploadFinetune accountId={accountId} subject={uploaded} onClose={() => setUploaded(null)} />
    </>
  );
}

const COLUMNS: Column<Finetune>[] = [
  {
    id: "name",
    header: "Name",
    sortBy: (finetune) => finetune.name,
    cell: (finetune) => (
      <Group gap={4} wrap="nowrap">
        <Name value={finetune.name} maxWidth={220} />
        <CopyButton value={finetune.name} label={`Copy the name ${finetune.name.slice(0, 80)}`} />
        {finetune.public && <Badge color="gray">public</Badge>}
      </Group>
    ),
  },
  { id: "model", header: "Base model", sortBy: (finetune) => finetune.model, cell: (finetune) => <ModelLink name={finetune.model} /> },
  { id: "description", header: "Description", isWideOnly: true, cell: (finetune) => <Name value={finetune.description} maxWidth={380} /> },
  {
    id: "modified",
    header: "Changed",
    width: 110,
    isWideOnly: true,
    sortBy: (finetune) => finetune.modified_at,
    cell: (finetune) => <Time value={finetune.modified_at} relative />,
  },
];

function actionColumn(canChange: boolean, upload: (finetune: Finetune) => void, remove: (finetune: Finetune) => void): Column<Finetune> {
  return {
    id: "actions",
    header: "",
    align: "right",
    width: 120,
    cell: (finetune) =>
      canChange && (
        <Group gap={2} justify="flex-end" wrap="nowrap">
          <PlaygroundLink finetune={finetune} />
          <Tooltip label="Upload its files again">
            <ActionIcon aria-label={`Upload the files of ${finetune.name.slice(0, 80)}`} onClick={() => upload(finetune)}>
              <IconUpload size={14} />
            </ActionIcon>
          </Tooltip>
          <Tooltip label="Remove">
            <ActionIcon aria-label={`Remove ${finetune.name.slice(0, 80)}`} onClick={() => remove(finetune)}>
              <IconTrash size={14} />
            </ActionIcon>
          </Tooltip>
        </Group>
      ),
  };
}

function PlaygroundLink({ finetune }: { finetune: Finetune }) {
  const { search } = useLocation();
  const query = new URLSearchParams(accountQuery(search));
  query.set("model", finetune.model);
  query.set("lora", finetune.name);
  return (
    <Tooltip label="Open in playground">
      <ActionIcon
        component={Link}
        to={{ pathname: "/playground", search: `?${query}` }}
        aria-label={`Open ${finetune.name.slice(0, 80)} in the playground`}
      >
        <IconMessageCircle size={14} />
      </ActionIcon>
    </Tooltip>
  );
}
