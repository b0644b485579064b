/** Documents to Markdown. */

import { Button, FileInput, Group, Stack, Text } from "@mantine/core";
import { useMutation, useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { client, result, send } from "@/api/client";
import { EmptyState } from "@/components/EmptyState";
import { ErrorState } from "@/components/ErrorState";
import { IconFileText, IconPlayerPlay } from "@/components/icons";
import { JsonView } from "@/components/JsonView";
import { Panel } from "@/components/Panel";
import { formatBytes, formatNumber } from "@/lib/format";
import { CodeButton } from "./CodeButton";
import type { PanelProps } from "./panels";

interface Converted {
  id: string;
  name: string;
  mimeType: string;
  format: "markdown" | "text" | "error";
  tokens?: number;
  data?: string;
  error?: string;
}

export default function DocumentsPanel({ accountId }: PanelProps) {
  const [files, setFiles] = useState<File[]>([]);
  const supported = useQuery({
    queryKey: ["document types"],
    queryFn: () =>
      result<{ extension: string }[]>(
        client.GET("/client/v4/accounts/{account_id}/ai/tomarkdown/supported", {
          params: { path: { account_id: accountId } },
        }),
      ),
    staleTime: Infinity,
  });
  const run = useMutation({ mutationFn: () => convert(accountId, files) });
  const extensions = supported.data?.map((each) => each.extension) ?? [];
  return (
    <>
      <Group gap="xs" mb="sm" justify="flex-end">
        <CodeButton call={{ accountId, model: "", route: "tomarkdown", body: {} }} />
      </Group>
      <Stack gap="md">
        <Panel>
          <Stack gap="sm">
            <FileInput
              label="Files"
              description={extensions.length > 0 ? `Types: ${extensions.join(" ")}` : undefined}
              placeholder="Choose files"
              multiple
              clearable
              accept={extensions.join(",")}
              value={files}
              onChange={setFiles}
            />
            <Group>
              <Button
                loading={run.isPending}
                disabled={files.length === 0}
                leftSection={<IconPlayerPlay size={14} />}
                onClick={() => run.mutate()}
              >
                Convert
              </Button>
              <Text size="xs" c="dimmed">
                {files.length > 0 && formatBytes(files.reduce((sum, file) => sum + file.size, 0))}
              </Text>
            </Group>
          </Stack>
        </Panel>
        {run.error && <ErrorState error={run.error} title="The conversion failed" />}
        {run.data?.map((each) => <ConvertedFile key={each.id} file={each} />)}
        {!run.data && !run.error && (
          <Panel>
            <EmptyState title="No documents yet" icon={IconFileText}>
              Files become Markdown that a model can read. Their content is not stored.
            </EmptyState>
          </Panel>
        )}
      </Stack>
    </>
  );
}

async function convert(accountId: string, files: File[]): Promise<Converted[]> {
  const form = new FormData();
  for (const file of files) form.append("files", file);
  const response = await send(`/client/v4/accounts/${accountId}/ai/tomarkdown`, { method: "POST", body: form });
  return ((await response.json()) as { result: Converted[] }).result;
}

function ConvertedFile({ file }: { file: Converted }) {
  const tokens = file.tokens === undefined ? "" : `, about ${formatNumber(file.tokens)} tokens`;
  return (
    <Panel title={file.name.slice(0, 200)} description={`${file.mimeType}${tokens}`}>
      {file.format === "error" ? (
        <ErrorState error={new Error(file.error ?? "The file could not be converted.")} title="Not converted" />
      ) : (
        <JsonView value={file.data ?? ""} label={`Markdown of ${file.name.slice(0, 80)}`} maxHeight={520} />
      )}
    </Panel>
  );
}
