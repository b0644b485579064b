/** One model: abilities, prices, code samples, schema; for platform roles also where it runs and who may use it. */

import { Anchor, Breadcrumbs, Button, Group, SegmentedControl, Stack, Table, Tabs, Text } from "@mantine/core";
import { type ReactNode, useState } from "react";
import { Link, useLocation } from "react-router";
import { accountQuery } from "@/app/Shell";
import { useAccountId, usePermissions } from "@/app/session";
import { CopyButton } from "@/components/CopyButton";
import { EmptyState } from "@/components/EmptyState";
import { ErrorState } from "@/components/ErrorState";
import { IconMessageCircle } from "@/components/icons";
import { JsonView } from "@/components/JsonView";
import { PageHeader } from "@/components/PageHeader";
import { Panel } from "@/components/Panel";
import { Num } from "@/components/values";
import { formatMoney } from "@/lib/format";
import { useFilters } from "@/lib/query-state";
import { panelOf } from "@/screens/playground/panels";
import { Capabilities } from "./Capabilities";
import { useCallableNames, useCatalog, useModelSchema } from "./catalog";
import { type CatalogModel, contextOf, pricesOf, propertyOf } from "./catalog-filters";
import { sampleBody } from "./code-samples";
import { CodeSamples } from "./CodeSamples";
import { Deployment } from "./Deployment";
import { ModelAccess } from "./ModelAccess";
import { SchemaTree } from "./SchemaTree";

const FILTERS = { tab: "overview" };

export function ModelPage({ name }: { name: string }) {
  const accountId = useAccountId();
  const { platform } = usePermissions();
  const { search } = useLocation();
  const [filters, setFilters] = useFilters(FILTERS);
  const catalog = useCatalog(true);
  const callable = useCallableNames();
  const model = catalog.data?.find((each) => each.name === name);
  const isInstalled = callable.data?.has(name) ?? false;
  const list = { pathname: "/models", search: accountQuery(search) };
  if (catalog.error && !catalog.data) return <ErrorState error={catalog.error} onRetry={() => void catalog.refetch()} />;
  if (catalog.data && !model) {
    return (
      <EmptyState
        title="The catalog has no such model"
        action={
          <Button component={Link} to={list}>
            Browse the catalog
          </Button>
        }
      >
        <span className="mono name">{name.slice(0, 200)}</span>
      </EmptyState>
    );
  }
  return (
    <>
      <Breadcrumbs mb={4} fz="xs">
        <Anchor component={Link} to={list} size="xs">
          Models
        </Anchor>
        <Text size="xs" c="dimmed" className="name">
          {name}
        </Text>
      </Breadcrumbs>
      <PageHeader
        title={name}
        description={
          <Stack gap={6}>
            {model?.description}
            {model && <Capabilities model={model} isInstalled={isInstalled} />}
          </Stack>
        }
        actions={
          <>
            <CopyButton value={name} label="Copy model id" withText />
            {model && isInstalled && <PlaygroundButton model={model} />}
          </>
        }
      />
      <Tabs value={filters.tab} onChange={(tab) => setFilters({ tab }, true)}>
        <Tabs.List aria-label="Parts of the model" mb="md">
          <Tabs.Tab value="overview">Overview</Tabs.Tab>
          <Tabs.Tab value="schema">Schema</Tabs.Tab>
          {platform && <Tabs.Tab value="deployment">Deployment</Tabs.Tab>}
          {platform && <Tabs.Tab value="access">Access</Tabs.Tab>}
        </Tabs.List>
        <Tabs.Panel value="overview">{model && <Overview model={model} accountId={accountId} />}</Tabs.Panel>
        <Tabs.Panel value="schema">
          <SchemaView name={name} />
        </Tabs.Panel>
        {platform && (
          <>
            <Tabs.Panel value="deployment">
              <Deployment name={name} />
            </Tabs.Panel>
            <Tabs.Panel value="access">
              <ModelAccess name={name} />
            </Tabs.Panel>
          </>
        )}
      </Tabs>
    </>
  );
}

function PlaygroundButton({ model }: { model: CatalogModel }) {
  const { search } = useLocation();
  const panel = panelOf(model.task.name);
  if (!panel) return null;
  const query = new URLSearchParams(accountQuery(search));
  query.set("panel", panel.key);
  query.set("model", model.name);
  return (
    <Button component={Link} to={{ pathname: "/playground", search: `?${query}` }} leftSection={<IconMessageCircle size={14} />}>
      Open in playground
    </Button>
  );
}

function Overview({ model, accountId }: { model: CatalogModel; accountId: string | null }) {
  const facts: [string, ReactNode][] = [
    ["Task", model.task.name],
    ["Context window", contextOf(model) === null ? null : <><Num value={contextOf(model)} /> tokens</>],
    ["Largest output", text(model, "max_output_tokens")],
    ["Dimensions", text(model, "output_dimensions")],
    ["Languages", text(model, "languages")],
    ["Added", model.created_at.slice(0, 10)],
    ["Planned end", text(model, "planned_deprecation_date")],
    ["Terms", link(model, "terms")],
    ["More information", link(model, "info")],
  ];
  return (
    <Group align="start" gap="md" wrap="wrap">
      <Stack gap="md" flex="1 1 280px" miw={0}>
        <Panel title="Facts">
          <FactTable rows={facts.filter(([, value]) => value !== null)} label="Facts" />
        </Panel>
        <Panel title="Prices" description="US dollars">
          {pricesOf(model).length === 0 ? (
            <Text size="sm" c="dimmed">
              Calls of this model are free, or its price is not known.
            </Text>
          ) : (
            <FactTable rows={pricesOf(model).map((price) => [price.unit, formatMoney(price.price)])} label="Prices" />
          )}
        </Panel>
      </Stack>
      <Stack flex="2 1 420px" miw={0}>
        <Panel title="Call this model" description={accountId ? undefined : "Choose an account to see its URL."}>
          <CodeSamples
            call={{ accountId: accountId ?? "ACCOUNT_ID", model: model.name, ...sampleBody(model.task.name) }}
          />
        </Panel>
      </Stack>
    </Group>
  );
}

function text(model: CatalogModel, name: string): string | null {
  const value = propertyOf(model, name);
  return typeof value === "string" ? value.slice(0, 500) : null;
}

/** Only https addresses become links: the catalog's texts come from model cards. */
function link(model: CatalogModel, name: string): ReactNode {
  const value = text(model, name);
  if (value === null || !value.startsWith("https://")) return value;
  return (
    <Anchor href={value} target="_blank" rel="noreferrer noopener" size="sm" className="name">
      {value}
    </Anchor>
  );
}

function FactTable({ rows, label }: { rows: [string, ReactNode][]; label: string }) {
  return (
    <Table aria-label={label} withRowBorders={false} verticalSpacing={3} horizontalSpacing={0}>
      <Table.Tbody>
        {rows.map(([name, value]) => (
          <Table.Tr key={name}>
            <Table.Th scope="row" fw={400} c="dimmed" pr="md">
              {name}
            </Table.Th>
            <Table.Td className="name">{value}</Table.Td>
          </Table.Tr>
        ))}
      </Table.Tbody>
    </Table>
  );
}

function SchemaView({ name }: { name: string }) {
  const schema = useModelSchema(name);
  const [half, setHalf] = useState<"input" | "output">("input");
  const [form, setForm] = useState("tree");
  if (schema.error) return <ErrorState error={schema.error} title="The schema could not be read" onRetry={() => void schema.refetch()} />;
  return (
    <Panel>
      <Group justify="space-between" mb="sm">
        <SegmentedControl
          aria-label="Part of the schema"
          value={half}
          onChange={(value) => setHalf(value as "input" | "output")}
          data={[
            { value: "input", label: "Input" },
            { value: "output", label: "Output" },
          ]}
        />
        <SegmentedControl
          aria-label="Form of the schema"
          value={form}
          onChange={setForm}
          data={[
            { value: "tree", label: "Fields" },
            { value: "json", label: "JSON Schema" },
          ]}
        />
      </Group>
      {schema.data &&
        (form === "tree" ? (
          <SchemaTree schema={schema.data[half]} />
        ) : (
          <JsonView value={schema.data[half]} label={`JSON Schema of the ${half}`} maxHeight={640} />
        ))}
    </Panel>
  );
}
