/** Latency, errors, ready models and alerts. */

import { Anchor, Group, Progress, Stack, Table, Text } from "@mantine/core";
import { Link, useLocation } from "react-router";
import { accountQuery } from "@/app/Shell";
import { useAccounts } from "@/app/session";
import { Panel } from "@/components/Panel";
import { Duration, Money, Name, Num, Percent, State, Time } from "@/components/values";
import type { Alert, MetricSummary, Percentiles } from "./shapes";

const NO_LATENCY = "Latency appears with the first call.";
const MAX_SHOWN = 8;

function Hint({ children }: { children: string }) {
  return (
    <Text size="sm" c="dimmed">
      {children}
    </Text>
  );
}

export function LatencyPanel({ latency }: { latency: MetricSummary["latency"] }) {
  const rows: [string, Percentiles | null][] = [
    ["First token", latency.ttft_ms],
    ["Total", latency.total_ms],
  ];
  if (!latency.total_ms) return <Panel title="Latency"><Hint>{NO_LATENCY}</Hint></Panel>;
  return (
    <Panel title="Latency" description={`Of the newest ${latency.num_calls.toLocaleString("en-US")} calls`}>
      <Table aria-label="Latency percentiles" horizontalSpacing={4}>
        <Table.Thead>
          <Table.Tr>
            <Table.Td />
            {["P50", "P95", "P99"].map((name) => (
              <Table.Th key={name} scope="col" ta="right">
                {name}
              </Table.Th>
            ))}
          </Table.Tr>
        </Table.Thead>
        <Table.Tbody>
          {rows.map(([name, values]) => (
            <Table.Tr key={name}>
              <Table.Th scope="row" fw={400}>
                {name}
              </Table.Th>
              {(["p50", "p95", "p99"] as const).map((percentile) => (
                <Table.Td key={percentile} ta="right" style={{ whiteSpace: "nowrap" }}>
                  <Duration value={values ? values[percentile] / 1000 : null} />
                </Table.Td>
              ))}
            </Table.Tr>
          ))}
        </Table.Tbody>
      </Table>
    </Panel>
  );
}

export function ErrorsPanel({ errors, numCalls }: { errors: MetricSummary["errors"]; numCalls: number }) {
  const { search } = useLocation();
  const account = new URLSearchParams(accountQuery(search));
  return (
    <Panel title="Errors by code">
      {errors.length === 0 && <Hint>No call failed in this time span.</Hint>}
      <Stack gap={6}>
        {errors.slice(0, MAX_SHOWN).map(({ status, num }) => (
          <div key={status}>
            <Group justify="space-between" wrap="nowrap" gap="xs">
              <Anchor
                component={Link}
                size="sm"
                to={{ pathname: "/logs", search: `?${new URLSearchParams([...account, ["status", status]])}` }}
              >
                <Name value={status} mono maxWidth={180} />
              </Anchor>
              <Text size="sm">
                <Num value={num} /> · <Percent value={num / Math.max(1, numCalls)} />
              </Text>
            </Group>
            <Progress value={(num / Math.max(1, numCalls)) * 100} color="red" size={3} aria-hidden />
          </div>
        ))}
      </Stack>
    </Panel>
  );
}

export function ReadyModelsPanel({ models }: { models: string[] }) {
  const { search } = useLocation();
  return (
    <Panel title="Ready models">
      {models.length === 0 && <Hint>No model is loaded. A model is loaded with its first call, or on the fleet screen.</Hint>}
      <Stack gap={6}>
        {models.slice(0, MAX_SHOWN).map((model) => (
          <Group key={model} justify="space-between" wrap="nowrap" gap="xs">
            <Anchor component={Link} size="sm" miw={0} to={{ pathname: `/models/${model}`, search: accountQuery(search) }}>
              <Name value={model} maxWidth="100%" />
            </Anchor>
            <State value="ready" />
          </Group>
        ))}
        {models.length > MAX_SHOWN && (
          <Anchor component={Link} size="sm" to={{ pathname: "/models", search: accountQuery(search) }}>
            {models.length - MAX_SHOWN} more
          </Anchor>
        )}
      </Stack>
    </Panel>
  );
}

export function AlertsPanel({ alerts }: { alerts: Alert[] }) {
  const accounts = useAccounts();
  const names = new Map((accounts.data ?? []).map((account) => [account.id, account.name]));
  return (
    <Panel title="Alerts">
      {alerts.length === 0 && <Hint>No budget has passed a threshold.</Hint>}
      <Stack gap={6}>
        {alerts.slice(0, MAX_SHOWN).map((alert) => (
          <div key={`${alert.account_id} ${alert.at} ${alert.percent} ${alert.unit} ${alert.api_token_id}`}>
            <Anchor component={Link} size="sm" to={{ pathname: "/usage", search: `?account=${alert.account_id}&view=budgets` }}>
              <Name value={names.get(alert.account_id) ?? alert.account_id} maxWidth={220} />
            </Anchor>
            <Text size="xs" c="dimmed" component="div">
              {alert.percent} % of {alert.unit === "usd" ? <Money value={alert.amount} /> : <><Num value={alert.amount} /> neurons</>}
              {alert.api_token_id ? " (one API token)" : ""} · <Time value={alert.at} relative />
            </Text>
          </div>
        ))}
      </Stack>
    </Panel>
  );
}
