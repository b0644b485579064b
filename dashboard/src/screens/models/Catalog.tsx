/** The catalog with its filters. The filters are in the query string. */

import { Button, Group, MultiSelect, Select, Switch, Text, TextInput } from "@mantine/core";
import { useMemo } from "react";
import { type Column, DataTable } from "@/components/DataTable";
import { EmptyState } from "@/components/EmptyState";
import { IconBox, IconSearch } from "@/components/icons";
import { Panel } from "@/components/Panel";
import { Missing, Name, Num, State } from "@/components/values";
import { formatMoney } from "@/lib/format";
import { useFilters } from "@/lib/query-state";
import { Capabilities } from "./Capabilities";
import { useCallableNames, useCatalog } from "./catalog";
import { authorOf, CAPABILITIES, type CatalogModel, contextOf, filterModels, leadingPrice, pricesOf, tokenPrice } from "./catalog-filters";
import { ModelLink } from "./links";

const FILTERS = {
  search: "",
  task: "",
  author: "",
  capabilities: "",
  max_price: "",
  min_context: "",
  available: "",
  deprecated: "",
};
const NO_FILTERS = Object.fromEntries(Object.keys(FILTERS).map((name) => [name, null]));

const CONTEXTS = ["4096", "8192", "32000", "128000", "1000000"];
const PRICES = ["0", "0.1", "0.5", "1", "5"];

export function Catalog() {
  const [filters, setFilters] = useFilters(FILTERS);
  const catalog = useCatalog(filters.deprecated !== "");
  const callable = useCallableNames();
  const installed = callable.data;
  const models = useMemo(() => {
    const found = filterModels(catalog.data ?? [], filters);
    return filters.available === "" ? found : found.filter((model) => installed?.has(model.name));
  }, [catalog.data, filters, installed]);
  const columns = useMemo(() => columnsOf(installed), [installed]);
  const all = catalog.data ?? [];
  const tasks = [...new Set(all.map((model) => model.task.name))].sort();
  const authors = [...new Set(all.map((model) => authorOf(model.name)))].sort();
  return (
    <Panel isFlush>
      <Group gap="xs" p="md" pb="sm" align="center">
        <TextInput
          aria-label="Search models"
          placeholder="Search models"
          leftSection={<IconSearch size={14} />}
          value={filters.search}
          flex="2 1 200px"
          maw={360}
          onChange={(event) => setFilters({ search: event.currentTarget.value })}
        />
        <FilterSelect label="Task" plural="All tasks" data={tasks} value={filters.task} onChange={(task) => setFilters({ task })} />
        <FilterSelect label="Author" plural="All authors" data={authors} value={filters.author} onChange={(author) => setFilters({ author })} />
        <MultiSelect
          aria-label="Capabilities"
          placeholder={filters.capabilities === "" ? "All capabilities" : ""}
          data={Object.entries(CAPABILITIES).map(([value, label]) => ({ value, label }))}
          value={filters.capabilities.split(",").filter(Boolean)}
          clearable
          flex="1 1 170px"
          maw={320}
          onChange={(names) => setFilters({ capabilities: names.join(",") })}
        />
        <FilterSelect
          label="Highest price"
          plural="Any price"
          data={PRICES.map((value) => ({ value, label: value === "0" ? "Free" : `Up to ${formatMoney(Number(value))}` }))}
          value={filters.max_price}
          onChange={(max_price) => setFilters({ max_price })}
        />
        <FilterSelect
          label="Smallest context"
          plural="Any context"
          data={CONTEXTS.map((value) => ({ value, label: `From ${Number(value).toLocaleString("en-US")}` }))}
          value={filters.min_context}
          onChange={(min_context) => setFilters({ min_context })}
        />
        <Switch
          label="Available"
          checked={filters.available !== ""}
          onChange={(event) => setFilters({ available: event.currentTarget.checked ? "1" : null })}
        />
        <Switch
          label="Deprecated"
          checked={filters.deprecated !== ""}
          onChange={(event) => setFilters({ deprecated: event.currentTarget.checked ? "1" : null })}
        />
      </Group>
      <DataTable
        label="Models"
        columns={columns}
        rows={catalog.data && models}
        rowId={(model) => model.name}
        error={catalog.error}
        onRetry={() => void catalog.refetch()}
        defaultSort="-state"
        empty={
          <EmptyState
            title="No model matches the filters"
            icon={IconBox}
            action={
              <Button variant="default" onClick={() => setFilters(NO_FILTERS)}>
                Clear the filters
              </Button>
            }
          />
        }
      />
      {catalog.data && (
        <Text size="xs" c="dimmed" px="md" py="xs">
          {models.length} of {all.length} models
        </Text>
      )}
    </Panel>
  );
}

interface FilterSelectProps {
  label: string;
  plural: string;
  data: string[] | { value: string; label: string }[];
  value: string;
  onChange: (value: string | null) => void;
}

function FilterSelect({ label, plural, data, value, onChange }: FilterSelectProps) {
  return (
    <Select
      aria-label={label}
      placeholder={plural}
      data={data}
      value={value || null}
      searchable
      clearable
      flex="1 1 130px"
      maw={220}
      onChange={onChange}
    />
  );
}

function columnsOf(installed: Set<string> | undefined): Column<CatalogModel>[] {
  return [
    {
      id: "name",
      header: "Model",
      sortBy: (model) => model.name,
      cell: (model) => <ModelLink name={model.name} />,
    },
    {
      id: "state",
      header: "State",
      width: 95,
      sortBy: (model) => (installed?.has(model.name) ? 1 : 0),
      cell: (model) => <State value={installed?.has(model.name) ? "available" : "listed"} />,
    },
    {
      id: "task",
      header: "Task",
      width: 170,
      isWideOnly: true,
      sortBy: (model) => model.task.name,
      cell: (model) => <Name value={model.task.name} maxWidth={160} />,
    },
    {
      id: "capabilities",
      header: "Capabilities",
      isWideOnly: true,
      cell: (model) => <Capabilities model={model} />,
    },
    {
      id: "context",
      header: "Context",
      width: 100,
      align: "right",
      isWideOnly: true,
      sortBy: contextOf,
      cell: (model) => <Num value={contextOf(model)} />,
    },
    {
      id: "price",
      header: "Price",
      width: 190,
      align: "right",
      isWideOnly: true,
      sortBy: leadingPrice,
      cell: (model) => <PriceText model={model} />,
    },
  ];
}

function PriceText({ model }: { model: CatalogModel }) {
  const [input, output] = [tokenPrice(model, "input"), tokenPrice(model, "output")];
  if (input !== null) {
    const text = output === null ? formatMoney(input) : `${formatMoney(input)} / ${formatMoney(output)}`;
    return <span title="US dollars per million input and output tokens">{text}</span>;
  }
  const first = pricesOf(model)[0];
  if (!first) return <Missing />;
  return (
    <Group gap={4} wrap="nowrap" justify="flex-end" title={first.unit}>
      {formatMoney(first.price)}
      <Text size="xs" c="dimmed" className="ellipsis" maw={110}>
        {first.unit}
      </Text>
    </Group>
  );
}
