/** List of tools that a chat offers, and a dialog that edits one: as fields, or as a JSON Schema. */

import { ActionIcon, Button, Checkbox, Group, Modal, Paper, SegmentedControl, Select, Stack, Text, Textarea, TextInput } from "@mantine/core";
import { useState } from "react";
import { IconEdit, IconPlus, IconTrash } from "@/components/icons";
import { Name } from "@/components/values";
import { jsonError } from "./schema-parameters";
import { EXAMPLE_TOOL, FIELD_TYPES, fieldsOf, schemaOf, TOOL_NAME, type Tool, type ToolField } from "./tool-schema";

interface ToolsEditorProps {
  tools: Tool[];
  choice: string;
  onChange: (tools: Tool[]) => void;
  onChoose: (choice: string) => void;
}

const EMPTY_TOOL: Tool = { name: "", description: "", parameters: { type: "object", properties: {}, required: [] } };

export function ToolsEditor({ tools, choice, onChange, onChoose }: ToolsEditorProps) {
  const [edited, setEdited] = useState<{ index: number; tool: Tool } | null>(null);
  const save = (tool: Tool) => {
    const index = edited?.index ?? tools.length;
    onChange(index === tools.length ? [...tools, tool] : tools.map((each, i) => (i === index ? tool : each)));
    setEdited(null);
  };
  return (
    <Stack gap="xs">
      {tools.map((tool, index) => (
        <Paper key={tool.name} px="xs" py={4}>
          <Group gap="xs" wrap="nowrap" justify="space-between">
            <Name value={tool.name} mono maxWidth={180} />
            <Group gap={2} wrap="nowrap">
              <ActionIcon aria-label={`Edit tool ${tool.name}`} onClick={() => setEdited({ index, tool })}>
                <IconEdit size={14} />
              </ActionIcon>
              <ActionIcon
                aria-label={`Remove tool ${tool.name}`}
                onClick={() => onChange(tools.filter((_, i) => i !== index))}
              >
                <IconTrash size={14} />
              </ActionIcon>
            </Group>
          </Group>
        </Paper>
      ))}
      <Group gap="xs">
        <Button
          variant="default"
          leftSection={<IconPlus size={14} />}
          onClick={() => setEdited({ index: tools.length, tool: EMPTY_TOOL })}
        >
          Add tool
        </Button>
        {tools.length === 0 && (
          <Button variant="subtle" onClick={() => onChange([EXAMPLE_TOOL])}>
            Use an example
          </Button>
        )}
      </Group>
      {tools.length > 0 && (
        <Select
          label="Tool choice"
          data={["auto", "required", "none"]}
          value={choice}
          allowDeselect={false}
          onChange={(value) => onChoose(value ?? "auto")}
        />
      )}
      <Modal opened={edited !== null} onClose={() => setEdited(null)} title="Tool" size="lg">
        {edited && (
          <ToolForm
            tool={edited.tool}
            takenNames={tools.filter((_, i) => i !== edited.index).map((tool) => tool.name)}
            onSave={save}
            onCancel={() => setEdited(null)}
          />
        )}
      </Modal>
    </Stack>
  );
}

interface ToolFormProps {
  tool: Tool;
  takenNames: string[];
  onSave: (tool: Tool) => void;
  onCancel: () => void;
}

function ToolForm({ tool, takenNames, onSave, onCancel }: ToolFormProps) {
  const [name, setName] = useState(tool.name);
  const [description, setDescription] = useState(tool.description);
  const [json, setJson] = useState(JSON.stringify(tool.parameters, null, 2));
  const [mode, setMode] = useState(fieldsOf(tool.parameters) === null ? "json" : "fields");
  const error = jsonError(json);
  const fields = error === null ? fieldsOf(JSON.parse(json) as Record<string, unknown>) : null;
  const nameError =
    name !== "" && !TOOL_NAME.test(name)
      ? "Use letters, digits and _ . : / - only."
      : takenNames.includes(name)
        ? "Another tool has this name."
        : null;
  const change = (next: ToolField[]) => setJson(JSON.stringify(schemaOf(next), null, 2));
  return (
    <Stack gap="sm">
      <TextInput label="Name" required value={name} error={nameError} onChange={(event) => setName(event.currentTarget.value)} />
      <TextInput label="Description" value={description} onChange={(event) => setDescription(event.currentTarget.value)} />
      <Group justify="space-between">
        <Text size="sm" fw={500}>
          Parameters
        </Text>
        <SegmentedControl
          aria-label="Edit parameters as"
          value={mode}
          onChange={setMode}
          data={[
            { value: "fields", label: "Fields", disabled: fields === null },
            { value: "json", label: "JSON Schema" },
          ]}
        />
      </Group>
      {mode === "fields" && fields ? (
        <FieldRows fields={fields} onChange={change} />
      ) : (
        <Textarea
          aria-label="JSON Schema of the parameters"
          classNames={{ input: "mono" }}
          autosize
          minRows={8}
          maxRows={18}
          value={json}
          error={error}
          onChange={(event) => setJson(event.currentTarget.value)}
        />
      )}
      <Group justify="flex-end">
        <Button variant="default" onClick={onCancel}>
          Cancel
        </Button>
        <Button
          disabled={name === "" || nameError !== null || error !== null}
          onClick={() => onSave({ name, description, parameters: JSON.parse(json) as Record<string, unknown> })}
        >
          Save tool
        </Button>
      </Group>
    </Stack>
  );
}

/** Fields under edit may share a name or have none for a moment, so the rows are state of their own. */
function FieldRows({ fields, onChange }: { fields: ToolField[]; onChange: (fields: ToolField[]) => void }) {
  const [rows, setRows] = useState(fields);
  const apply = (next: ToolField[]) => {
    setRows(next);
    onChange(next);
  };
  const set = (index: number, changes: Partial<ToolField>) =>
    apply(rows.map((row, i) => (i === index ? { ...row, ...changes } : row)));
  return (
    <Stack gap="xs">
      {rows.map((row, index) => (
        <Group key={index} gap="xs" align="center">
          <TextInput
            aria-label={`Name of field ${index + 1}`}
            placeholder="name"
            flex="1 1 110px"
            value={row.name}
            onChange={(event) => set(index, { name: event.currentTarget.value })}
          />
          <Select
            aria-label={`Type of field ${index + 1}`}
            w={104}
            data={FIELD_TYPES}
            allowDeselect={false}
            value={row.type}
            onChange={(type) => set(index, { type: type ?? "string" })}
          />
          <TextInput
            aria-label={`Description of field ${index + 1}`}
            placeholder="description"
            flex="2 1 160px"
            value={row.description}
            onChange={(event) => set(index, { description: event.currentTarget.value })}
          />
          <Checkbox
            label="required"
            checked={row.isRequired}
            onChange={(event) => set(index, { isRequired: event.currentTarget.checked })}
          />
          <ActionIcon aria-label={`Remove field ${index + 1}`} onClick={() => apply(rows.filter((_, i) => i !== index))}>
            <IconTrash size={14} />
          </ActionIcon>
        </Group>
      ))}
      <Button
        variant="default"
        w="fit-content"
        leftSection={<IconPlus size={14} />}
        onClick={() => apply([...rows, { name: "", type: "string", description: "", isRequired: false }])}
      >
        Add field
      </Button>
    </Stack>
  );
}
