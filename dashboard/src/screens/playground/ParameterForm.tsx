/** A form for the parameters of a model, generated from its schema. Fields that are not set are not sent. */

import { Button, Collapse, Group, NumberInput, Select, Slider, Stack, Switch, TagsInput, Text, Textarea, TextInput } from "@mantine/core";
import { useDisclosure } from "@mantine/hooks";
import { useId } from "react";
import { IconChevronDown, IconChevronRight } from "@/components/icons";
import { errorOf, type Parameter, type Values } from "./schema-parameters";

const COMMON = new Set(["max_tokens", "temperature", "top_p", "seed", "pooling"]);

interface ParameterFormProps {
  parameters: Parameter[];
  values: Values;
  onChange: (values: Values) => void;
}

export function ParameterForm({ parameters, values, onChange }: ParameterFormProps) {
  const [isOpen, { toggle }] = useDisclosure(false);
  const common = parameters.filter((each) => each.isRequired || COMMON.has(each.name));
  const others = parameters.filter((each) => !common.includes(each));
  const numSet = others.filter((each) => values[each.name] !== undefined && values[each.name] !== "").length;
  const field = (parameter: Parameter) => (
    <Field
      key={parameter.name}
      parameter={parameter}
      value={values[parameter.name]}
      onChange={(value) => onChange({ ...values, [parameter.name]: value })}
    />
  );
  return (
    <Stack gap="sm">
      {common.map(field)}
      {others.length > 0 && (
        <>
          <Group justify="space-between">
            <Button
              variant="subtle"
              color="gray"
              px={4}
              aria-expanded={isOpen}
              leftSection={isOpen ? <IconChevronDown size={14} /> : <IconChevronRight size={14} />}
              onClick={toggle}
            >
              More parameters{numSet > 0 ? ` (${numSet} set)` : ""}
            </Button>
            {Object.keys(values).length > 0 && (
              <Button variant="subtle" color="gray" px={4} onClick={() => onChange({})}>
                Reset
              </Button>
            )}
          </Group>
          <Collapse expanded={isOpen}>
            <Stack gap="sm">{others.map(field)}</Stack>
          </Collapse>
        </>
      )}
    </Stack>
  );
}

interface FieldProps {
  parameter: Parameter;
  value: unknown;
  onChange: (value: unknown) => void;
}

function Field({ parameter, value, onChange }: FieldProps) {
  const error = errorOf(parameter, value);
  const placeholder = parameter.default === undefined ? "default" : String(parameter.default);
  const common = { label: parameter.label, description: parameter.description, error, placeholder };
  switch (parameter.kind) {
    case "slider":
      return <SliderField parameter={parameter} value={value} onChange={onChange} />;
    case "number":
    case "integer":
      return (
        <NumberInput
          {...common}
          description={common.description ?? rangeOf(parameter)}
          value={typeof value === "number" ? value : ""}
          allowDecimal={parameter.kind === "number"}
          onChange={(next) => onChange(typeof next === "number" ? next : undefined)}
        />
      );
    case "boolean":
      return (
        <Switch
          label={parameter.label}
          checked={(value ?? parameter.default ?? false) === true}
          onChange={(event) => onChange(event.currentTarget.checked)}
        />
      );
    case "choice":
      return (
        <Select
          {...common}
          data={parameter.choices ?? []}
          value={typeof value === "string" ? value : null}
          clearable
          onChange={(next) => onChange(next ?? undefined)}
        />
      );
    case "list":
      return (
        <TagsInput
          {...common}
          placeholder="Press Enter after each value"
          value={Array.isArray(value) ? value.map(String) : []}
          onChange={(next) => onChange(next.length === 0 ? undefined : next)}
        />
      );
    case "json":
      return (
        <Textarea
          {...common}
          placeholder="JSON"
          classNames={{ input: "mono" }}
          autosize
          maxRows={8}
          value={typeof value === "string" ? value : ""}
          onChange={(event) => onChange(event.currentTarget.value || undefined)}
        />
      );
    default:
      return (
        <TextInput
          {...common}
          value={typeof value === "string" ? value : ""}
          onChange={(event) => onChange(event.currentTarget.value || undefined)}
        />
      );
  }
}

function SliderField({ parameter, value, onChange }: FieldProps) {
  const labelId = useId();
  const fallback = typeof parameter.default === "number" ? parameter.default : neutralOf(parameter);
  const shown = typeof value === "number" ? value : fallback;
  return (
    <div>
      <Group justify="space-between" gap={4} wrap="nowrap">
        <Text size="sm" fw={500} id={labelId}>
          {parameter.label}
        </Text>
        <NumberInput
          w={84}
          size="xs"
          aria-labelledby={labelId}
          value={typeof value === "number" ? value : ""}
          placeholder={parameter.default === undefined ? "default" : String(parameter.default)}
          min={parameter.minimum}
          max={parameter.maximum}
          step={parameter.step}
          onChange={(next) => onChange(typeof next === "number" ? next : undefined)}
        />
      </Group>
      <Slider
        mt={6}
        size="sm"
        thumbProps={{ "aria-labelledby": labelId }}
        label={null}
        value={shown}
        min={parameter.minimum ?? 0}
        max={parameter.maximum ?? 1}
        step={parameter.step ?? 0.05}
        onChange={onChange}
      />
    </div>
  );
}

/** Return the value that stands for "not set" on a slider: no penalty, no truncation. */
function neutralOf(parameter: Parameter): number {
  if (parameter.name === "repetition_penalty" || parameter.name === "top_p") return 1;
  return Math.max(0, parameter.minimum ?? 0);
}

function rangeOf({ minimum, maximum }: Parameter): string | undefined {
  if (minimum === undefined || maximum === undefined || maximum > 1e9) return undefined;
  return `${minimum.toLocaleString("en-US")} to ${maximum.toLocaleString("en-US")}`;
}
