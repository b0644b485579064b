/** Publications of models, with live progress. */

import { Button, Progress, Stack, Text } from "@mantine/core";
import { useQueryClient } from "@tanstack/react-query";
import { useEffect, useRef } from "react";
import { client, result } from "@/api/client";
import { usePermissions } from "@/app/session";
import { confirmAction } from "@/components/confirm";
import { type Column, DataTable } from "@/components/DataTable";
import { EmptyState } from "@/components/EmptyState";
import { IconUpload } from "@/components/icons";
import { Pager, usePageNumber } from "@/components/Pager";
import { Panel } from "@/components/Panel";
import { Name, State, Time } from "@/components/values";
import { formatBytes, formatPercent } from "@/lib/format";
import { ModelLink } from "./links";
import { isOpen, type Publication, usePublications } from "./platform";

export function Publications() {
  const number = usePageNumber();
  const { data, error, refetch } = usePublications(number);
  const { changePlatform } = usePermissions();
  const queries = useQueryClient();
  useRefreshWhenDone(data?.items);
  const cancel = (publication: Publication) =>
    confirmAction({
      title: "Cancel publication",
      object: publication.name,
      consequence: "Files that were already copied stay and are used by the next attempt.",
      confirm: "Cancel publication",
      action: async () => {
        const params = { path: { publication_id: publication.id } };
        await result(client.DELETE("/client/v4/publications/{publication_id}", { params }));
        await queries.invalidateQueries({ queryKey: ["publications"] });
      },
    });
  const columns: Column<Publication>[] = [
    {
      id: "name",
      header: "Model",
      cell: (each) => (each.state === "done" ? <ModelLink name={each.name} /> : <Name value={each.name} />),
    },
    { id: "state", header: "State", width: 110, cell: (each) => <State value={each.state} /> },
    { id: "progress", header: "Progress", cell: (each) => <ProgressCell publication={each} /> },
    {
      id: "source",
      header: "Source",
      isWideOnly: true,
      cell: (each) => <Name value={`${each.source}: ${each.repository ?? each.prefix ?? ""}${each.file ? ` (${each.file})` : ""}`} maxWidth={260} />,
    },
    { id: "created", header: "Started", width: 120, isWideOnly: true, cell: (each) => <Time value={each.created_at} relative /> },
  ];
  if (changePlatform) {
    columns.push({
      id: "actions",
      header: "",
      align: "right",
      width: 90,
      cell: (each) =>
        isOpen(each) && (
          <Button variant="subtle" color="red" onClick={() => cancel(each)} aria-label={`Cancel the publication of ${each.name}`}>
            Cancel
          </Button>
        ),
    });
  }
  return (
    <Panel isFlush>
      <DataTable
        label="Publications"
        columns={columns}
        rows={data?.items}
        rowId={(each) => each.id}
        error={error}
        onRetry={() => void refetch()}
        empty={
          <EmptyState title="Nothing was published here yet" icon={IconUpload}>
            Publish a model from a hub repository or from a folder of the object store with the button above. From a
            terminal: <span className="mono">hearth model pull org/name</span>.
          </EmptyState>
        }
      />
      <div style={{ padding: "0 var(--mantine-spacing-md) var(--mantine-spacing-sm)" }}>
        <Pager info={data?.info} noun="publications" />
      </div>
    </Panel>
  );
}

/** A publication that ends changes the catalog. */
function useRefreshWhenDone(items: Publication[] | undefined): void {
  const queries = useQueryClient();
  const numOpen = items?.filter(isOpen).length ?? 0;
  const before = useRef(numOpen);
  useEffect(() => {
    if (numOpen < before.current) {
      void queries.invalidateQueries({ queryKey: ["catalog"] });
      void queries.invalidateQueries({ queryKey: ["callable models"] });
    }
    before.current = numOpen;
  }, [numOpen, queries]);
}

function ProgressCell({ publication }: { publication: Publication }) {
  const { done_bytes: done, total_bytes: total, state, detail } = publication;
  const share = state === "done" ? 1 : total > 0 ? Math.min(1, done / total) : 0;
  const label = `${formatPercent(share)} of ${publication.name}`;
  return (
    <Stack gap={2} miw={140} py={2}>
      {isOpen(publication) && <Progress value={share * 100} size="sm" aria-label={label} animated={state === "running"} />}
      <Text size="xs" c={state === "failed" ? "red" : "dimmed"} className="name">
        {total > 0 && (state === "done" ? formatBytes(total) : `${formatBytes(done)} of ${formatBytes(total)}`)}
        {total > 0 && detail && " · "}
        {detail.slice(0, 300)}
      </Text>
    </Stack>
  );
}
