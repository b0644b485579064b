/** The fields of a JSON Schema as a table, one per variant. */

import { Badge, Group, Stack, Table, Text, Title } from "@mantine/core";
import type { Schema } from "@/screens/playground/schema-parameters";

const MAX_DEPTH = 6;

export function SchemaTree({ schema }: { schema: Schema }) {
  const variants = schema.oneOf ?? [schema];
  return (
    <Stack gap="lg">
      {schema.description && <Text size="sm">{schema.description}</Text>}
      {variants.map((variant, index) => (
        <div key={index}>
          {variants.length > 1 && (
            <Title order={3} mb={4}>
              {variant.title ?? `Variant ${index + 1}`}
            </Title>
          )}
          {variant.properties ? (
            <Fields schema={variant} />
          ) : (
            <Text size="sm" c="dimmed">
              {describe(variant)}
            </Text>
          )}
        </div>
      ))}
    </Stack>
  );
}

function Fields({ schema }: { schema: Schema }) {
  return (
    <Table.ScrollContainer minWidth={480}>
      <Table aria-label={schema.title ?? "Fields"} verticalSpacing={4}>
        <Table.Thead>
          <Table.Tr>
            <Table.Th scope="col">Field</Table.Th>
            <Table.Th scope="col">Type</Table.Th>
            <Table.Th scope="col">Values</Table.Th>
          </Table.Tr>
        </Table.Thead>
        <Table.Tbody>{rowsOf(schema, 0, "")}</Table.Tbody>
      </Table>
    </Table.ScrollContainer>
  );
}

function rowsOf(schema: Schema, depth: number, path: string): React.JSX.Element[] {
  const required = new Set(schema.required ?? []);
  return Object.entries(schema.properties ?? {}).flatMap(([name, field]) => {
    const key = `${path}.${name}`;
    const row = (
      <Table.Tr key={key}>
        <Table.Td pl={12 + depth * 18}>
          <Group gap={6} wrap="nowrap">
            <span className="mono">{name}</span>
            {required.has(name) && <Badge color="gray">required</Badge>}
          </Group>
        </Table.Td>
        <Table.Td className="mono">{typeOf(field)}</Table.Td>
        <Table.Td>
          <Text size="xs" className="name">
            {describe(field)}
          </Text>
        </Table.Td>
      </Table.Tr>
    );
    const inner = field.properties ? field : field.items?.properties ? field.items : null;
    return inner && depth < MAX_DEPTH ? [row, ...rowsOf(inner, depth + 1, key)] : [row];
  });
}

function typeOf(schema: Schema): string {
  const types = [schema.type ?? "any"].flat();
  return types.map((type) => (type === "array" && schema.items ? `${itemType(schema.items)}[]` : type)).join(" | ");
}

function itemType(schema: Schema): string {
  return [schema.type ?? "any"].flat().join(" | ");
}

/** Return the bounds, default and description of a field in words. */
function describe(schema: Schema): string {
  const { minimum, maximum } = schema;
  const range =
    minimum !== undefined && maximum !== undefined
      ? `${minimum} to ${maximum}`
      : minimum !== undefined
        ? `at least ${minimum}`
        : maximum !== undefined
          ? `at most ${maximum}`
          : "";
  const parts = [
    schema.enum && schema.enum.map(String).join(", "),
    range,
    schema.default !== undefined && `default ${JSON.stringify(schema.default)}`,
    schema.description,
  ];
  return parts.filter(Boolean).join("; ");
}
