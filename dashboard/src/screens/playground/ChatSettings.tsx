/** Settings of a chat: system prompt, adapter, output format, thinking, tools and parameters. */

import { Divider, Select, Stack, Text, Textarea } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { client, result } from "@/api/client";
import { type CatalogModel, hasCapability } from "@/screens/models/catalog-filters";
import { ParameterForm } from "./ParameterForm";
import { jsonError, type Parameter, type Values } from "./schema-parameters";
import { toolsField, type Tool } from "./tool-schema";
import { ToolsEditor } from "./ToolsEditor";

export interface ChatOptions {
  systemPrompt: string;
  lora: string;
  format: "text" | "json_object" | "json_schema";
  schema: string;
  thinking: "default" | "on" | "off";
  tools: Tool[];
  toolChoice: string;
  values: Values;
}

const EXAMPLE_SCHEMA = {
  type: "object",
  properties: { name: { type: "string" }, city: { type: "string" } },
  required: ["name", "city"],
};

export const NEW_CHAT: ChatOptions = {
  systemPrompt: "",
  lora: "",
  format: "text",
  schema: JSON.stringify(EXAMPLE_SCHEMA, null, 2),
  thinking: "default",
  tools: [],
  toolChoice: "auto",
  values: {},
};

/** Parameters of the schema that have a control of their own, or that a chat does not use. */
export const HIDDEN_PARAMETERS: ReadonlySet<string> = new Set([
  "chat_template_kwargs",
  "function_call",
  "functions",
  "guided_choice",
  "guided_grammar",
  "guided_json",
  "guided_regex",
  "lora",
  "messages",
  "model",
  "n",
  "parallel_tool_calls",
  "prompt",
  "raw",
  "response_format",
  "stream",
  "stream_options",
  "structured_outputs",
  "tool_choice",
  "tools",
]);

/** Return the fields that the options add to the body of a chat request. */
export function optionFields(options: ChatOptions): Record<string, unknown> {
  const fields: Record<string, unknown> = {};
  if (options.tools.length > 0) {
    fields.tools = toolsField(options.tools);
    if (options.toolChoice !== "auto") fields.tool_choice = options.toolChoice;
  }
  if (options.format === "json_object") fields.response_format = { type: "json_object" };
  if (options.format === "json_schema" && jsonError(options.schema) === null) {
    const schema = JSON.parse(options.schema) as unknown;
    fields.response_format = { type: "json_schema", json_schema: { name: "response", schema } };
  }
  if (options.thinking !== "default") fields.chat_template_kwargs = { enable_thinking: options.thinking === "on" };
  if (options.lora !== "") fields.lora = options.lora;
  return fields;
}

interface ChatSettingsProps {
  accountId: string;
  model: CatalogModel;
  parameters: Parameter[];
  /** Names of all properties of the model's schema. */
  properties: ReadonlySet<string>;
  options: ChatOptions;
  onChange: (changes: Partial<ChatOptions>) => void;
}

export function ChatSettings({ accountId, model, parameters, properties, options, onChange }: ChatSettingsProps) {
  return (
    <Stack gap="sm">
      <Textarea
        label="System prompt"
        placeholder="You are a helpful assistant."
        autosize
        minRows={2}
        maxRows={10}
        value={options.systemPrompt}
        onChange={(event) => onChange({ systemPrompt: event.currentTarget.value })}
      />
      {hasCapability(model, "lora") && (
        <AdapterSelect
          accountId={accountId}
          model={model.name}
          value={options.lora}
          onChange={(lora) => onChange({ lora })}
        />
      )}
      {hasCapability(model, "reasoning") && (
        <Select
          label="Thinking"
          data={[
            { value: "default", label: "Model's default" },
            { value: "on", label: "On" },
            { value: "off", label: "Off" },
          ]}
          allowDeselect={false}
          value={options.thinking}
          onChange={(thinking) => onChange({ thinking: (thinking ?? "default") as ChatOptions["thinking"] })}
        />
      )}
      {properties.has("response_format") && <OutputFormat options={options} onChange={onChange} />}
      {properties.has("tools") && (
        <>
          <Divider label="Tools" labelPosition="left" />
          <ToolsEditor
            tools={options.tools}
            choice={options.toolChoice}
            onChange={(tools) => onChange({ tools })}
            onChoose={(toolChoice) => onChange({ toolChoice })}
          />
        </>
      )}
      <Divider label="Parameters" labelPosition="left" />
      <ParameterForm parameters={parameters} values={options.values} onChange={(values) => onChange({ values })} />
    </Stack>
  );
}

function OutputFormat({ options, onChange }: Pick<ChatSettingsProps, "options" | "onChange">) {
  return (
    <>
      <Select
        label="Output"
        data={[
          { value: "text", label: "Text" },
          { value: "json_object", label: "JSON object" },
          { value: "json_schema", label: "JSON by a schema" },
        ]}
        allowDeselect={false}
        value={options.format}
        onChange={(format) => onChange({ format: (format ?? "text") as ChatOptions["format"] })}
      />
      {options.format === "json_schema" && (
        <Textarea
          label="JSON Schema of the output"
          classNames={{ input: "mono" }}
          autosize
          minRows={5}
          maxRows={16}
          value={options.schema}
          error={jsonError(options.schema)}
          onChange={(event) => onChange({ schema: event.currentTarget.value })}
        />
      )}
    </>
  );
}

interface Adapter {
  id: string;
  name: string;
  model: string;
  public: boolean;
}

interface AdapterSelectProps {
  accountId: string;
  model: string;
  value: string;
  onChange: (name: string) => void;
}

function AdapterSelect({ accountId, model, value, onChange }: AdapterSelectProps) {
  const params = { path: { account_id: accountId } };
  const { data = [], error } = useQuery({
    queryKey: ["adapters", accountId],
    queryFn: async () => {
      const [own, listed] = await Promise.all([
        result<Adapter[]>(client.GET("/client/v4/accounts/{account_id}/ai/finetunes", { params })),
        result<Adapter[]>(client.GET("/client/v4/accounts/{account_id}/ai/finetunes/public", { params })),
      ]);
      return [...own, ...listed];
    },
  });
  const names = [...new Set(data.filter((adapter) => adapter.model === model).map((adapter) => adapter.name))];
  return (
    <>
      <Select
        label="Adapter"
        placeholder={names.length === 0 ? "no adapter for this model" : "none"}
        data={names}
        clearable
        disabled={names.length === 0}
        value={value || null}
        onChange={(name) => onChange(name ?? "")}
      />
      {error && (
        <Text size="xs" c="red">
          Adapters could not be listed: {error.message}
        </Text>
      )}
    </>
  );
}
