/** Batches and background responses with their progress, and the webhooks that report their results. */

import { Button, Progress, Stack, Tabs, Text } from "@mantine/core";
import { useQueryClient } from "@tanstack/react-query";
import { client, result } from "@/api/client";
import { useAccountId, usePermissions } from "@/app/session";
import { confirmAction } from "@/components/confirm";
import { CopyButton } from "@/components/CopyButton";
import { type Column, DataTable } from "@/components/DataTable";
import { EmptyState } from "@/components/EmptyState";
import { IconStack2 } from "@/components/icons";
import { NoAccount } from "@/components/NoAccount";
import { PageHeader } from "@/components/PageHeader";
import { Pager, usePageNumber } from "@/components/Pager";
import { Panel } from "@/components/Panel";
import { Name, State, Time } from "@/components/values";
import { formatNumber } from "@/lib/format";
import { useFilters } from "@/lib/query-state";
import { type Batch, isOpen, useBatches } from "./queries";
import { Webhooks } from "./Webhooks";

const FILTERS = { tab: "batches" };

export default function Jobs() {
  const accountId = useAccountId();
  const [filters, setFilters] = useFilters(FILTERS);
  if (accountId === null) return <NoAccount title="Batches and jobs" />;
  return (
    <>
      <PageHeader title="Batches and jobs" description="Queued calls, background responses, and the webhooks that report them." />
      <Tabs value={filters.tab} onChange={(tab) => setFilters({ tab }, true)}>
        <Tabs.List aria-label="Views of the jobs" mb="md">
          <Tabs.Tab value="batches">Batches</Tabs.Tab>
          <Tabs.Tab value="webhooks">Webhooks</Tabs.Tab>
        </Tabs.List>
        <Tabs.Panel value="batches">
          <Batches accountId={accountId} />
        </Tabs.Panel>
        <Tabs.Panel value="webhooks">
          <Webhooks accountId={accountId} />
        </Tabs.Panel>
      </Tabs>
    </>
  );
}

function Batches({ accountId }: { accountId: string }) {
  const { data, error, refetch } = useBatches(accountId, usePageNumber());
  const { runModels } = usePermissions();
  const queries = useQueryClient();
  const cancel = (batch: Batch) =>
    confirmAction({
      title: "Cancel batch",
      object: batch.id,
      consequence: `${formatNumber(batch.progress.total - batch.progress.done)} requests without a result fail. Results that exist stay.`,
      confirm: "Cancel batch",
      action: async () => {
        const params = { path: { account_id: accountId, batch_id: batch.id } };
        await result(client.POST("/client/v4/accounts/{account_id}/ai/batches/{batch_id}/cancel", { params }));
        await queries.invalidateQueries({ queryKey: ["batches", accountId] });
      },
      done: "The batch is being cancelled",
    });
  const columns: Column<Batch>[] = [
    { id: "id", header: "Id", cell: (batch) => <BatchId id={batch.id} /> },
    { id: "kind", header: "Kind", isWideOnly: true, width: 90, cell: (batch) => batch.kind },
    { id: "model", header: "Model", cell: (batch) => <Name value={batch.model} maxWidth={200} /> },
    { id: "state", header: "State", width: 110, cell: (batch) => <State value={batch.state} /> },
    { id: "progress", header: "Progress", width: 150, cell: (batch) => <BatchProgress batch={batch} /> },
    { id: "created", header: "Queued", width: 110, isWideOnly: true, cell: (batch) => <Time value={batch.created_at} relative /> },
    { id: "finished", header: "Finished", width: 110, isWideOnly: true, cell: (batch) => <Time value={batch.finished_at} relative /> },
    { id: "expires", header: "Expires", width: 100, isWideOnly: true, cell: (batch) => <Time value={batch.expires_at} relative /> },
  ];
  if (runModels(accountId)) {
    columns.push({
      id: "actions",
      header: "",
      align: "right",
      width: 90,
      cell: (batch) =>
        isOpen(batch) &&
        batch.state !== "cancelling" && (
          <Button variant="subtle" color="red" aria-label={`Cancel batch ${batch.id}`} onClick={() => cancel(batch)}>
            Cancel
          </Button>
        ),
    });
  }
  return (
    <Panel isFlush>
      <DataTable
        label="Batches"
        columns={columns}
        rows={data?.items}
        rowId={(batch) => batch.id}
        error={error}
        onRetry={() => void refetch()}
        empty={
          <EmptyState icon={IconStack2} title="Nothing is queued">
            <span className="mono">POST …/ai/run/MODEL?queueRequest=true</span> with up to 10,000{" "}
            <span className="mono">requests</span> queues a batch. Results are kept for a day.
          </EmptyState>
        }
      />
      <div style={{ padding: "0 var(--mantine-spacing-md) var(--mantine-spacing-sm)" }}>
        <Pager info={data?.info} noun="batches" />
      </div>
    </Panel>
  );
}

export function BatchId({ id }: { id: string }) {
  return (
    <span style={{ display: "inline-flex", alignItems: "center", gap: 4 }}>
      <Name value={id} mono maxWidth={130} />
      <CopyButton value={id} label={`Copy batch id ${id}`} />
    </span>
  );
}

function BatchProgress({ batch }: { batch: Batch }) {
  const { done, failed, total } = batch.progress;
  const share = (number: number) => (total > 0 ? (number / total) * 100 : 0);
  const label = `${formatNumber(done)} of ${formatNumber(total)} requests done, ${formatNumber(failed)} failed`;
  return (
    <Stack gap={2} miw={110}>
      <Progress.Root size="sm" title={label}>
        <Progress.Section value={share(done - failed)} color="teal" aria-label={label} />
        <Progress.Section value={share(failed)} color="red" aria-hidden />
      </Progress.Root>
      <Text size="xs" c="dimmed">
        {formatNumber(done)} of {formatNumber(total)}
        {failed > 0 && `, ${formatNumber(failed)} failed`}
      </Text>
    </Stack>
  );
}
