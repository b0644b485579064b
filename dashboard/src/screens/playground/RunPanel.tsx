/** Tries a model that takes one input and returns one output: text, images or sound. The form follows its schema. */

import { ActionIcon, Button, FileInput, Group, Image, Stack, Text, Textarea, Tooltip } from "@mantine/core";
import { useMutation } from "@tanstack/react-query";
import { useEffect, useMemo, useRef, useState } from "react";
import { EmptyState } from "@/components/EmptyState";
import { ErrorState } from "@/components/ErrorState";
import { IconMicrophone, IconPlayerPlay, IconPlayerStop } from "@/components/icons";
import { Panel as Box } from "@/components/Panel";
import { formatDuration, formatNumber } from "@/lib/format";
import { useModelSchema } from "@/screens/models/catalog";
import { CodeButton } from "./CodeButton";
import { ModelSelect } from "./ModelSelect";
import { useChosenModel } from "./models";
import type { PanelProps } from "./panels";
import { ParameterForm } from "./ParameterForm";
import classes from "./playground.module.css";
import { useRecorder } from "./recording";
import { fieldsOf, formOf, type InputValues, isComplete, linesOf, type RunForm, type RunInput, sampleFields } from "./run-form";
import { runModel, type RunResult } from "./run-model";
import { RunOutputView } from "./RunOutputView";
import type { Values } from "./schema-parameters";
import { useFileUrl } from "./useFileUrl";

const ACCEPTED = { audio: "audio/*,.wav,.mp3,.flac,.ogg", image: "image/*" };

/** The result of a call, with the inputs that its view shows again. */
interface Finished {
  result: RunResult;
  file: File | null;
  documents: string[];
}

export default function RunPanel({ accountId, models, panel }: PanelProps) {
  const [model, chooseModel] = useChosenModel("model", models);
  const [inputs, setInputs] = useState<InputValues>({});
  const [values, setValues] = useState<Values>({});
  const schema = useModelSchema(model?.name ?? null);
  const form = useMemo(() => schema.data && formOf(schema.data.input), [schema.data]);
  const { run, stop } = useRun(accountId, model?.name ?? "", form);
  if (!model) return null;
  const change = (name: string, value: string | File | null) => setInputs((before) => ({ ...before, [name]: value }));
  return (
    <>
      <Group gap="xs" mb="sm">
        <ModelSelect label="Model" models={models} value={model.name} onChange={chooseModel} />
        {form && (
          <CodeButton
            call={{ accountId, model: model.name, route: "run", body: sampleFields(form, inputs, values) }}
          />
        )}
      </Group>
      {schema.error && <ErrorState error={schema.error} title="The model's parameters could not be loaded" />}
      <div className={classes.chat} style={{ height: "auto" }}>
        <Stack gap="md" miw={0}>
          <Box>
            <Stack gap="sm">
              {form?.inputs.map((input) => (
                <InputField
                  key={input.name}
                  input={input}
                  value={inputs[input.name] ?? null}
                  onChange={(value) => change(input.name, value)}
                />
              ))}
              <Group>
                {run.isPending ? (
                  <Button color="red" variant="light" leftSection={<IconPlayerStop size={14} />} onClick={stop}>
                    Stop
                  </Button>
                ) : (
                  <Button
                    disabled={!form || !isComplete(form, inputs, values)}
                    leftSection={<IconPlayerPlay size={14} />}
                    onClick={() => run.mutate({ inputs, values })}
                  >
                    Run
                  </Button>
                )}
                {run.isPending && (
                  <Text size="sm" c="dimmed" role="status">
                    The model is working …
                  </Text>
                )}
              </Group>
            </Stack>
          </Box>
          {run.error && <ErrorState error={run.error} title="The call failed" />}
          {run.data && <FinishedView finished={run.data} />}
          {!run.data && !run.error && !run.isPending && (
            <Box>
              <EmptyState title="No result yet" icon={panel.icon}>
                Inputs are sent as this account&apos;s own calls: they count towards its usage, and their content is not stored.
              </EmptyState>
            </Box>
          )}
        </Stack>
        <aside className={classes.settings} aria-label="Parameters">
          {form && form.parameters.length > 0 ? (
            <ParameterForm parameters={form.parameters} values={values} onChange={setValues} />
          ) : (
            <Text size="sm" c="dimmed">
              This model has no parameters.
            </Text>
          )}
        </aside>
      </div>
    </>
  );
}

/** Return the mutation that runs the model, and a function that stops it without an error. */
function useRun(accountId: string, model: string, form: RunForm | undefined) {
  const controller = useRef<AbortController | null>(null);
  useEffect(() => () => controller.current?.abort(), []);
  const run = useMutation({
    mutationFn: async ({ inputs, values }: { inputs: InputValues; values: Values }): Promise<Finished | null> => {
      if (!form) return null;
      const aborter = new AbortController();
      controller.current = aborter;
      const fields = await fieldsOf(form, inputs, values);
      try {
        const result = await runModel(accountId, model, fields, form.isMultipart, aborter.signal);
        const files = form.inputs.map((input) => inputs[input.name]).filter((value) => value instanceof File);
        return { result, file: files[0] ?? null, documents: linesOf(textOf(inputs.contexts)) };
      } catch (error) {
        if (aborter.signal.aborted) return null;
        throw error;
      }
    },
  });
  return { run, stop: () => controller.current?.abort() };
}

function textOf(value: string | File | null | undefined): string {
  return typeof value === "string" ? value : "";
}

interface InputFieldProps {
  input: RunInput;
  value: string | File | null;
  onChange: (value: string | File | null) => void;
}

function InputField({ input, value, onChange }: InputFieldProps) {
  const label = input.isRequired ? input.label : `${input.label} (optional)`;
  if (input.kind === "image" || input.kind === "audio") {
    return <FileField kind={input.kind} label={label} file={value instanceof File ? value : null} onChange={onChange} />;
  }
  return (
    <Textarea
      label={label}
      description={input.kind === "lines" ? "One document per line." : undefined}
      autosize
      minRows={input.kind === "lines" ? 4 : 2}
      maxRows={16}
      value={textOf(value)}
      onChange={(event) => onChange(event.currentTarget.value)}
    />
  );
}

interface FileFieldProps {
  kind: "image" | "audio";
  label: string;
  file: File | null;
  onChange: (file: File | null) => void;
}

function FileField({ kind, label, file, onChange }: FileFieldProps) {
  const url = useFileUrl(file);
  const recorder = useRecorder(onChange);
  return (
    <Stack gap="xs">
      <Group gap="xs" align="flex-end" wrap="nowrap">
        <FileInput
          flex={1}
          label={label}
          placeholder="Choose a file"
          clearable
          accept={ACCEPTED[kind]}
          value={file}
          error={recorder.error}
          onChange={onChange}
        />
        {kind === "audio" && (
          <Tooltip label={recorder.isRecording ? "Stop recording" : "Record from the microphone"}>
            <ActionIcon
              size="lg"
              variant={recorder.isRecording ? "filled" : "default"}
              color={recorder.isRecording ? "red" : undefined}
              aria-label={recorder.isRecording ? "Stop recording" : "Record from the microphone"}
              onClick={recorder.isRecording ? recorder.stop : recorder.start}
            >
              {recorder.isRecording ? <IconPlayerStop /> : <IconMicrophone />}
            </ActionIcon>
          </Tooltip>
        )}
      </Group>
      {url && kind === "audio" && <audio controls src={url} aria-label={label} style={{ width: "100%" }} />}
      {url && kind === "image" && <Image src={url} alt={`Preview of ${file?.name ?? "the file"}`} mah={220} w="auto" fit="contain" />}
    </Stack>
  );
}

function FinishedView({ finished: { result, file, documents } }: { finished: Finished }) {
  const parts = [formatDuration(result.elapsedMs / 1000)];
  if (result.neurons !== null) parts.push(`${formatNumber(result.neurons)} neurons`);
  return (
    <Box title="Result" description={parts.join(" · ")}>
      <div aria-live="polite">
        <RunOutputView output={result.output} file={file} documents={documents} />
      </div>
    </Box>
  );
}
