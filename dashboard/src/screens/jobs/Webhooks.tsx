/** Deliveries of webhooks, and the key that signs them. */

import { Button, Group, Modal, Stack, Text } from "@mantine/core";
import { useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { client, result } from "@/api/client";
import { usePermissions } from "@/app/session";
import { confirmAction, runAction } from "@/components/confirm";
import { type Column, DataTable } from "@/components/DataTable";
import { EmptyState } from "@/components/EmptyState";
import { ErrorState } from "@/components/ErrorState";
import { IconWebhook } from "@/components/icons";
import { Pager, usePageNumber } from "@/components/Pager";
import { Panel } from "@/components/Panel";
import { SecretOnce } from "@/components/SecretOnce";
import { Missing, Name, Num, State, Time } from "@/components/values";
import { BatchId } from "./Jobs";
import { type Delivery, useDeliveries, useWebhookKey, type WebhookKey } from "./queries";

const COLUMNS: Column<Delivery>[] = [
  { id: "batch", header: "Batch", cell: (each) => <BatchId id={each.batch_id} /> },
  { id: "host", header: "Receiver", cell: (each) => (each.host ? <Name value={each.host} maxWidth={220} /> : <Missing />) },
  { id: "state", header: "State", width: 110, cell: (each) => <State value={each.state} /> },
  { id: "attempts", header: "Attempts", width: 90, align: "right", cell: (each) => <Num value={each.num_attempts} /> },
  { id: "outcome", header: "Last outcome", isWideOnly: true, cell: (each) => (each.outcome ? <Name value={each.outcome} /> : <Missing />) },
  { id: "last", header: "Last attempt", width: 120, isWideOnly: true, cell: (each) => <Time value={each.last_attempt_at} relative /> },
  { id: "next", header: "Next attempt", width: 120, cell: (each) => <Time value={each.next_attempt_at} relative /> },
];

export function Webhooks({ accountId }: { accountId: string }) {
  const { data, error, refetch } = useDeliveries(accountId, usePageNumber());
  const { runModels } = usePermissions();
  return (
    <Stack gap="md">
      <Panel title="Deliveries" isFlush>
        <DataTable
          label="Webhook deliveries"
          columns={COLUMNS}
          rows={data?.items}
          rowId={(each) => each.batch_id}
          error={error}
          onRetry={() => void refetch()}
          empty={
            <EmptyState icon={IconWebhook} title="No webhook is waiting or was sent">
              A background run with <span className="mono">webhookUrl</span> posts its result to that address.
            </EmptyState>
          }
        />
        <div style={{ padding: "0 var(--mantine-spacing-md) var(--mantine-spacing-sm)" }}>
          <Pager info={data?.info} noun="deliveries" />
        </div>
      </Panel>
      {runModels(accountId) && <SigningKey accountId={accountId} />}
    </Stack>
  );
}

function SigningKey({ accountId }: { accountId: string }) {
  const key = useWebhookKey(accountId);
  const queries = useQueryClient();
  const [secret, setSecret] = useState<string | null>(null);
  const params = { path: { account_id: accountId } };
  const refresh = () => queries.invalidateQueries({ queryKey: ["webhook key", accountId] });
  const create = async () => {
    const made = await result<WebhookKey>(client.PUT("/client/v4/accounts/{account_id}/ai/webhooks/key", { params, body: {} }));
    setSecret(made.secret ?? null);
    await refresh();
  };
  const roll = () =>
    confirmAction({
      title: "Replace signing key",
      object: key.data?.id ?? "",
      consequence: "The old key signs beside the new one for a day, so that receivers can change over.",
      confirm: "Replace",
      isDestructive: false,
      action: create,
    });
  const remove = () =>
    confirmAction({
      title: "Remove signing key",
      object: key.data?.id ?? "",
      consequence: "Webhooks are no longer signed, and receivers cannot verify them.",
      confirm: "Remove",
      action: async () => {
        await result(client.DELETE("/client/v4/accounts/{account_id}/ai/webhooks/key", { params }));
        await refresh();
      },
    });
  return (
    <Panel title="Signing key" description="Receivers verify webhooks with it, by the Standard Webhooks rules">
      {key.error && <ErrorState error={key.error} onRetry={() => void key.refetch()} />}
      {key.data && (
        <Group justify="space-between">
          <div>
            <Text size="sm" className="mono">
              {key.data.id}
            </Text>
            <Text size="xs" c="dimmed">
              created <Time value={key.data.created_on} relative />
              {key.data.previous_signs_until && (
                <>
                  , the previous key signs until <Time value={key.data.previous_signs_until} />
                </>
              )}
            </Text>
          </div>
          <Group gap="xs">
            <Button variant="default" onClick={roll}>
              Replace
            </Button>
            <Button variant="light" color="red" onClick={remove}>
              Remove
            </Button>
          </Group>
        </Group>
      )}
      {key.data === null && (
        <Group justify="space-between">
          <Text size="sm" c="dimmed">
            Webhooks are not signed.
          </Text>
          <Button onClick={() => void runAction(create, "")}>Create signing key</Button>
        </Group>
      )}
      <Modal opened={secret !== null} onClose={() => setSecret(null)} title="Signing key" closeOnClickOutside={false}>
        {secret && <SecretOnce label="Secret" value={secret} />}
      </Modal>
    </Panel>
  );
}
