/** Effective settings of the gateway that serves this page, and where each value comes from. */

import { Badge, Box, Group, SegmentedControl, Text, TextInput } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import { client, result } from "@/api/client";
import { CopyButton } from "@/components/CopyButton";
import { type Column, DataTable } from "@/components/DataTable";
import { EmptyState } from "@/components/EmptyState";
import { IconLock, IconSearch } from "@/components/icons";
import { PageHeader } from "@/components/PageHeader";
import { Panel } from "@/components/Panel";
import { Missing, Name } from "@/components/values";
import { useFilters } from "@/lib/query-state";

interface Setting {
  name: string;
  value: string | number | boolean | null;
  default: string | number | boolean | null;
  source: "environment" | "default";
  is_secret: boolean;
  help: string;
}

const DEFAULTS = { search: "", source: "all" };

function textOf(value: Setting["value"]): string {
  return value === null ? "" : String(value);
}

function Value({ setting }: { setting: Setting }) {
  const text = textOf(setting.value);
  if (setting.is_secret) {
    return (
      <Group gap={4} wrap="nowrap" c="dimmed">
        <IconLock size={14} />
        {text ? "set, hidden" : "not set"}
      </Group>
    );
  }
  const isChanged = textOf(setting.default) !== "" && setting.default !== setting.value;
  return (
    <>
      {text ? <Name value={text} mono maxWidth={250} /> : <Missing />}
      {isChanged && (
        <Text size="xs" c="dimmed" component="div">
          default <span className="mono">{textOf(setting.default)}</span>
        </Text>
      )}
    </>
  );
}

const COLUMNS: Column<Setting>[] = [
  {
    id: "name",
    header: "Setting",
    sortBy: (setting) => setting.name,
    cell: (setting) => (
      <>
        <Group gap={4} wrap="nowrap">
          <Name value={setting.name} mono maxWidth={300} />
          <CopyButton value={setting.name} label={`Copy ${setting.name}`} />
        </Group>
        <Box hiddenFrom="sm" c="dimmed">
          <Value setting={setting} />
        </Box>
      </>
    ),
  },
  { id: "value", header: "Value", isWideOnly: true, cell: (setting) => <Value setting={setting} /> },
  {
    id: "source",
    header: "Source",
    sortBy: (setting) => setting.source,
    cell: (setting) => <Badge color={setting.source === "environment" ? "blue" : "gray"}>{setting.source}</Badge>,
  },
  {
    id: "help",
    header: "Meaning",
    isWideOnly: true,
    cell: (setting) => (
      <Text size="sm" c="dimmed" style={{ whiteSpace: "normal" }} miw={260} maw={560}>
        {setting.help}
      </Text>
    ),
  },
];

export default function Settings() {
  const [filters, setFilters] = useFilters(DEFAULTS);
  const { data, error, refetch } = useQuery({
    queryKey: ["settings"],
    queryFn: () => result<Setting[]>(client.GET("/client/v4/settings")),
  });
  const shown = useMemo(() => {
    const words = filters.search.toLowerCase();
    return data?.filter(
      (setting) =>
        `${setting.name} ${setting.help}`.toLowerCase().includes(words) &&
        (filters.source === "all" || setting.source === filters.source),
    );
  }, [data, filters]);
  return (
    <>
      <PageHeader
        title="Settings"
        description="Effective values of the gateway that serves this page. Settings change with environment variables and a restart."
      />
      <Panel isFlush>
        <Group m="sm" gap="sm">
          <TextInput
            w={280}
            aria-label="Find a setting"
            placeholder="Find by name or meaning"
            leftSection={<IconSearch size={14} />}
            value={filters.search}
            onChange={(event) => setFilters({ search: event.currentTarget.value })}
          />
          <SegmentedControl
            aria-label="Source"
            value={filters.source}
            onChange={(source) => setFilters({ source })}
            data={[
              { value: "all", label: "All" },
              { value: "environment", label: "Set" },
              { value: "default", label: "Default" },
            ]}
          />
        </Group>
        <DataTable
          label="Settings"
          columns={COLUMNS}
          rows={shown}
          rowId={(setting) => setting.name}
          error={error}
          onRetry={() => void refetch()}
          maxHeight="none"
          empty={<EmptyState title="No setting matches">Change the search, or show all settings.</EmptyState>}
        />
      </Panel>
    </>
  );
}
