/** Embeddings of several texts, and how similar they are. */

import { Button, Group, ScrollArea, Stack, Text, Textarea } from "@mantine/core";
import { useMutation } from "@tanstack/react-query";
import { useState } from "react";
import { send } from "@/api/client";
import { EmptyState } from "@/components/EmptyState";
import { ErrorState } from "@/components/ErrorState";
import { IconPlayerPlay, IconVector } from "@/components/icons";
import { Panel } from "@/components/Panel";
import { CodeButton } from "./CodeButton";
import { ModelSelect } from "./ModelSelect";
import { useChosenModel } from "./models";
import type { PanelProps } from "./panels";
import classes from "./playground.module.css";
import { similarityMatrix } from "./similarity";

const MAX_TEXTS = 50; // a larger matrix cannot be read
const EXAMPLE = "How do I reset my password?\nI forgot my login details\nWhat is the weather in Paris?\nIs it raining in France?";

interface Result {
  texts: string[];
  matrix: number[][];
  dimensions: number;
  tokens: number;
}

export default function EmbeddingsPanel({ accountId, models }: PanelProps) {
  const [model, chooseModel] = useChosenModel("model", models);
  const [text, setText] = useState(EXAMPLE);
  const texts = text.split("\n").map((line) => line.trim()).filter(Boolean);
  const run = useMutation({ mutationFn: (input: string[]) => embed(accountId, model?.name ?? "", input) });
  if (!model) return null;
  return (
    <>
      <Group gap="xs" mb="sm">
        <ModelSelect label="Model" models={models} value={model.name} onChange={chooseModel} />
        <CodeButton call={{ accountId, model: model.name, route: "embeddings", body: { input: texts } }} />
      </Group>
      <Stack gap="md">
        <Panel>
          <Stack gap="sm">
            <Textarea
              label="Texts"
              description={`One text per line, up to ${MAX_TEXTS}.`}
              autosize
              minRows={4}
              maxRows={16}
              value={text}
              error={texts.length > MAX_TEXTS ? `There are ${texts.length} texts.` : null}
              onChange={(event) => setText(event.currentTarget.value)}
            />
            <Button
              w="fit-content"
              loading={run.isPending}
              disabled={texts.length === 0 || texts.length > MAX_TEXTS}
              leftSection={<IconPlayerPlay size={14} />}
              onClick={() => run.mutate(texts)}
            >
              Embed
            </Button>
          </Stack>
        </Panel>
        {run.error && <ErrorState error={run.error} title="The call failed" />}
        {run.data ? (
          <Matrix result={run.data} />
        ) : (
          !run.error && (
            <Panel>
              <EmptyState title="No embeddings yet" icon={IconVector}>
                Texts with a similar meaning have a cosine similarity near 1.
              </EmptyState>
            </Panel>
          )
        )}
      </Stack>
    </>
  );
}

async function embed(accountId: string, model: string, input: string[]): Promise<Result> {
  const response = await send(`/client/v4/accounts/${accountId}/ai/v1/embeddings`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ model, input }),
  });
  const body = (await response.json()) as { data: { embedding: number[] }[]; usage?: { prompt_tokens?: number } };
  const vectors = body.data.map((each) => each.embedding);
  return {
    texts: input,
    matrix: similarityMatrix(vectors),
    dimensions: vectors[0]?.length ?? 0,
    tokens: body.usage?.prompt_tokens ?? 0,
  };
}

function Matrix({ result }: { result: Result }) {
  return (
    <Panel
      title="Cosine similarity"
      description={`${result.texts.length} vectors of ${result.dimensions} dimensions, ${result.tokens} tokens`}
    >
      <ScrollArea type="auto">
        <table className={classes.matrix} aria-label="Cosine similarity of the texts">
          <thead>
            <tr>
              <td />
              {result.texts.map((_, index) => (
                <th key={index} scope="col">
                  {index + 1}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {result.matrix.map((row, i) => (
              <tr key={i}>
                <th scope="row">
                  <Text size="xs" className="ellipsis" dir="auto" title={result.texts[i]}>
                    {i + 1}. {result.texts[i]}
                  </Text>
                </th>
                {row.map((value, j) => (
                  <td key={j} style={{ background: colorOf(value) }}>
                    {value.toFixed(2)}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </ScrollArea>
    </Panel>
  );
}

function colorOf(similarity: number): string {
  const share = Math.round(Math.max(0, similarity) * 45);
  return `color-mix(in srgb, var(--mantine-color-teal-6) ${share}%, transparent)`;
}
