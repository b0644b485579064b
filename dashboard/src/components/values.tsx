/** Values in tables and cards: times, numbers, money, sizes, durations, names. */

import { Badge, Text, Tooltip } from "@mantine/core";
import { useSyncExternalStore } from "react";
import {
  formatBytes,
  formatCompact,
  formatDuration,
  formatLocalTime,
  formatMoney,
  formatNumber,
  formatPercent,
  formatRelative,
  formatUtcTime,
} from "@/lib/format";

// One timer for all relative times on the page.
let now = new Date();
const watchers = new Set<() => void>();
setInterval(() => {
  now = new Date();
  for (const watcher of watchers) watcher();
}, 10_000);

function watchNow(watcher: () => void): () => void {
  watchers.add(watcher);
  return () => watchers.delete(watcher);
}

/** A time in the local zone, with UTC on hover. `relative` shows the distance from now instead. */
export function Time({ value, relative = false }: { value: string | number | null | undefined; relative?: boolean }) {
  const current = useSyncExternalStore(watchNow, () => now);
  if (value === null || value === undefined || value === "") return <Missing />;
  const date = new Date(typeof value === "number" ? value * 1000 : value);
  if (Number.isNaN(date.getTime())) return <Missing />;
  const local = formatLocalTime(date);
  // A time that is younger than the timer's last tick is "now".
  const shown = relative ? formatRelative(date, current > date ? current : new Date()) : local;
  return (
    <Tooltip label={relative ? `${local} · ${formatUtcTime(date)}` : formatUtcTime(date)}>
      <time dateTime={date.toISOString()} style={{ whiteSpace: "nowrap" }}>
        {shown}
      </time>
    </Tooltip>
  );
}

interface NumberProps {
  value: number | null | undefined;
}

export function Num({ value, compact = false }: NumberProps & { compact?: boolean }) {
  if (value === null || value === undefined) return <Missing />;
  if (!compact || Math.abs(value) < 10_000) return <>{formatNumber(value)}</>;
  return <span title={formatNumber(value)}>{formatCompact(value)}</span>;
}

export function Money({ value }: NumberProps) {
  if (value === null || value === undefined) return <Missing />;
  return <span title={`${value} US dollars`}>{formatMoney(value)}</span>;
}

export function Bytes({ value }: NumberProps) {
  if (value === null || value === undefined) return <Missing />;
  return <span title={`${formatNumber(value)} bytes`}>{formatBytes(value)}</span>;
}

/** A duration in seconds. */
export function Duration({ value }: NumberProps) {
  if (value === null || value === undefined) return <Missing />;
  return <>{formatDuration(value)}</>;
}

export function Percent({ value }: NumberProps) {
  if (value === null || value === undefined) return <Missing />;
  return <>{formatPercent(value)}</>;
}

/** A value that does not exist. */
export function Missing() {
  return (
    <Text span c="dimmed" aria-label="none">
      –
    </Text>
  );
}

/** A name that a user chose: on one line, with the whole name on hover. */
export function Name({ value, mono = false, maxWidth = 320 }: { value: string; mono?: boolean; maxWidth?: number | string }) {
  const shown = value.length > 300 ? `${value.slice(0, 300)}…` : value;
  return (
    <span
      className={mono ? "ellipsis mono" : "ellipsis"}
      dir="auto"
      title={value.slice(0, 1000)}
      style={{ display: "inline-block", verticalAlign: "bottom", maxWidth }}
    >
      {shown}
    </span>
  );
}

const STATE_COLORS: Record<string, string> = {
  ready: "teal",
  active: "teal",
  ok: "teal",
  accepted: "teal",
  completed: "teal",
  delivered: "teal",
  finished: "teal",
  done: "teal",
  available: "teal",
  loading: "blue",
  running: "blue",
  in_progress: "blue",
  validating: "blue",
  finalizing: "blue",
  queued: "gray",
  pending: "yellow",
  waiting: "gray",
  retrying: "yellow",
  retired: "red",
  listed: "gray",
  draining: "yellow",
  cancelling: "yellow",
  expired: "yellow",
  cold: "gray",
  sleeping: "gray",
  disabled: "gray",
  cancelled: "gray",
  gone: "red",
  failed: "red",
  blocked: "red",
  error: "red",
};

/** A state in words, with a color that only repeats what the word says. */
export function State({ value }: { value: string }) {
  return (
    <Badge color={STATE_COLORS[value] ?? "gray"} miw="max-content">
      {value.replaceAll("_", " ")}
    </Badge>
  );
}
