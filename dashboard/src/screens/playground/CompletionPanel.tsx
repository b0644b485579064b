/** Text completion: the model continues a text. */

import { Button, Group, Stack, Textarea } from "@mantine/core";
import { useEffect, useMemo, useRef, useState } from "react";
import { ErrorState } from "@/components/ErrorState";
import { IconPlayerPlay, IconPlayerStop } from "@/components/icons";
import { Panel } from "@/components/Panel";
import { useModelSchema } from "@/screens/models/catalog";
import { EMPTY_OUTPUT, type Output } from "./chat-stream";
import { HIDDEN_PARAMETERS } from "./ChatSettings";
import { CodeButton } from "./CodeButton";
import { ModelSelect } from "./ModelSelect";
import { useChosenModel } from "./models";
import { OutputStats } from "./OutputStats";
import type { PanelProps } from "./panels";
import { ParameterForm } from "./ParameterForm";
import classes from "./playground.module.css";
import { bodyOf, parametersOf, type Values, variantWith } from "./schema-parameters";
import { streamRun } from "./stream-run";

export default function CompletionPanel({ accountId, models }: PanelProps) {
  const [model, chooseModel] = useChosenModel("model", models);
  const [prompt, setPrompt] = useState("");
  const [values, setValues] = useState<Values>({});
  const schema = useModelSchema(model?.name ?? null);
  const parameters = useMemo(() => {
    const variant = schema.data && variantWith(schema.data.input, "prompt");
    return variant ? parametersOf(variant, HIDDEN_PARAMETERS) : [];
  }, [schema.data]);
  const run = useCompletion();
  if (!model) return null;
  // Completions have a smaller default for `max_tokens` than the schema that the form shows.
  const maxTokens = parameters.find((parameter) => parameter.name === "max_tokens")?.default;
  const body = { prompt, ...(maxTokens === undefined ? {} : { max_tokens: maxTokens }), ...bodyOf(parameters, values) };
  return (
    <>
      <Group gap="xs" mb="sm">
        <ModelSelect label="Model" models={models} value={model.name} onChange={chooseModel} />
        <CodeButton call={{ accountId, model: model.name, route: "completions", body: { ...body, stream: true } }} />
      </Group>
      <div className={classes.chat} style={{ height: "auto" }}>
        <Panel>
          <Stack gap="sm">
            <Textarea
              label="Text"
              description="The model continues this text. Its chat template is not applied."
              placeholder="Once upon a time"
              autosize
              minRows={5}
              maxRows={20}
              value={prompt}
              onChange={(event) => setPrompt(event.currentTarget.value)}
            />
            <Group>
              {run.isRunning ? (
                <Button color="red" variant="light" leftSection={<IconPlayerStop size={14} />} onClick={run.stop}>
                  Stop
                </Button>
              ) : (
                <Button
                  disabled={prompt === ""}
                  leftSection={<IconPlayerPlay size={14} />}
                  onClick={() => run.start(accountId, { model: model.name, ...body })}
                >
                  Complete
                </Button>
              )}
            </Group>
            {Boolean(run.error) && <ErrorState error={run.error} title="The call failed" />}
            {run.output.numChunks > 0 && (
              <section aria-label="Completion" aria-live="polite">
                <div className={classes.text} dir="auto">
                  <span style={{ color: "var(--hearth-dimmed)" }}>{run.prompt}</span>
                  {run.output.content}
                </div>
                <OutputStats output={run.output} />
              </section>
            )}
          </Stack>
        </Panel>
        <aside className={classes.settings} aria-label="Parameters">
          <ParameterForm parameters={parameters} values={values} onChange={setValues} />
        </aside>
      </div>
    </>
  );
}

function useCompletion() {
  const [output, setOutput] = useState<Output>(EMPTY_OUTPUT);
  const [prompt, setPrompt] = useState("");
  const [error, setError] = useState<unknown>(null);
  const [isRunning, setRunning] = useState(false);
  const controller = useRef<AbortController | null>(null);
  useEffect(() => () => controller.current?.abort(), []);
  const start = (accountId: string, body: Record<string, unknown>) => {
    const aborter = new AbortController();
    controller.current = aborter;
    setOutput(EMPTY_OUTPUT);
    setPrompt(String(body.prompt));
    setError(null);
    setRunning(true);
    streamRun({ accountId, route: "completions", body, signal: aborter.signal, onOutput: setOutput })
      .then(setOutput)
      .catch((reason: unknown) => !aborter.signal.aborted && setError(reason))
      .finally(() => setRunning(false));
  };
  return { output, prompt, error, isRunning, start, stop: () => controller.current?.abort() };
}
