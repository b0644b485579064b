/** One call: its usage, and its timeline from arrival to the last byte. */

import { Box, Drawer, Group, SimpleGrid, Skeleton, Stack, Table, Text } from "@mantine/core";
import type { ReactNode } from "react";
import { CopyButton } from "@/components/CopyButton";
import { EmptyState } from "@/components/EmptyState";
import { ErrorState } from "@/components/ErrorState";
import { Bytes, Duration, Missing, Money, Name, Num, Time } from "@/components/values";
import { formatDuration } from "@/lib/format";
import { ModelLink } from "@/screens/models/links";
import { CallStatus } from "./Logs";
import classes from "./logs.module.css";
import { type Timeline, useCall } from "./queries";

/** `call` is `ACCOUNT_ID/REQUEST_ID`, or "" for none. */
export function CallDrawer({ call, onClose }: { call: string; onClose: () => void }) {
  const [accountId = "", requestId = ""] = call.split("/");
  return (
    <Drawer opened={call !== ""} onClose={onClose} position="right" size="lg" title="Call" closeButtonProps={{ "aria-label": "Close" }}>
      {accountId && requestId ? (
        <Details accountId={accountId} requestId={requestId} />
      ) : (
        <EmptyState title="This link names no call" />
      )}
    </Drawer>
  );
}

function Details({ accountId, requestId }: { accountId: string; requestId: string }) {
  const { data, error, refetch } = useCall(accountId, requestId);
  if (error) return <ErrorState error={error} title="The call could not be read" onRetry={() => void refetch()} />;
  if (!data) return <Skeleton h={240} />;
  return (
    <Stack gap="md">
      <Group gap={4}>
        <span className="mono name">{requestId}</span>
        <CopyButton value={requestId} label="Copy request id" />
        <CallStatus status={data.call.status} />
      </Group>
      <TimelineView timeline={data} />
      <Facts timeline={data} />
    </Stack>
  );
}

const PHASES: Record<Timeline["phases"][number]["name"], string> = {
  queue: "Queue",
  prefill: "Prefill",
  decode: "Decode",
  send: "Send",
};

function TimelineView({ timeline }: { timeline: Timeline }) {
  const { phases, call } = timeline;
  const total = Math.max(call.duration_ms, ...phases.map((phase) => phase.end_ms), 0.001);
  return (
    <section aria-label="Timeline">
      <Table withRowBorders={false} verticalSpacing={3} horizontalSpacing={0} aria-label="Phases of the call">
        <Table.Tbody>
          {phases.map((phase) => (
            <Table.Tr key={phase.name}>
              <Table.Th scope="row" fw={400} w={64}>
                {PHASES[phase.name] ?? phase.name}
              </Table.Th>
              <Table.Td>
                <div className={classes.track}>
                  <div
                    className={classes.phase}
                    data-phase={phase.name}
                    style={{
                      left: `${(phase.start_ms / total) * 100}%`,
                      width: `max(2px, ${((phase.end_ms - phase.start_ms) / total) * 100}%)`,
                    }}
                  />
                </div>
              </Table.Td>
              <Table.Td w={84} ta="right">
                {formatDuration((phase.end_ms - phase.start_ms) / 1000)}
              </Table.Td>
            </Table.Tr>
          ))}
        </Table.Tbody>
      </Table>
      <Group justify="space-between" mt={4}>
        <Text size="xs" c="dimmed">
          0
        </Text>
        <Text size="xs" c="dimmed">
          {formatDuration(total / 1000)}
        </Text>
      </Group>
    </section>
  );
}

function Facts({ timeline }: { timeline: Timeline }) {
  const { call, nodes, num_retries: numRetries } = timeline;
  const facts: [string, ReactNode][] = [
    ["Model", <ModelLink key="model" name={call.model} maxWidth={280} />],
    ["Version", call.revision ? <span className="mono">{call.revision.slice(0, 12)}</span> : <Missing />],
    ["Task", call.task],
    ["Started", <Time key="started" value={call.started_at} />],
    ["PoP", call.pop],
    ["Nodes tried", nodes.length > 0 ? <Name value={nodes.join(" → ")} maxWidth={280} /> : <Missing />],
    ["Retries", <Num key="retries" value={numRetries} />],
    ["First token", <Duration key="ttft" value={call.ttft_ms === null || call.ttft_ms === undefined ? null : call.ttft_ms / 1000} />],
    ["Tokens in", <Num key="in" value={call.prompt_tokens} />],
    ["of these cached", <Num key="cached" value={call.cached_tokens} />],
    ["Tokens out", <Num key="out" value={call.completion_tokens} />],
    ["Cost", <><Money value={call.usd} /> · <Num value={call.neurons} /> neurons</>],
    ["Streamed", call.is_stream ? "yes" : "no"],
    ["From a batch", call.is_batch ? "yes" : "no"],
    ["Useful", call.is_useful ? "yes" : "no"],
    ["Device time", <Duration key="device" value={(call.device_us ?? 0) / 1e6} />],
    ["Bytes in", <Bytes key="bytes in" value={call.bytes_in ?? 0} />],
    ["Bytes out", <Bytes key="bytes out" value={call.bytes_out ?? 0} />],
    ["API token", call.api_token_id ? <Name value={call.api_token_id} mono maxWidth={280} /> : <Missing />],
  ];
  return (
    <SimpleGrid cols={{ base: 1, xs: 2 }} spacing="sm" component="dl" m={0}>
      {facts.map(([name, value]) => (
        <Box key={name} miw={0}>
          <Text size="xs" c="dimmed" component="dt">
            {name}
          </Text>
          <Text size="sm" component="dd" m={0} className="name">
            {value}
          </Text>
        </Box>
      ))}
    </SimpleGrid>
  );
}
