/** The turns of one conversation. All text is shown as text. */

import { Badge, Box, Button, Group, Loader, Paper, Stack, Text, TextInput } from "@mantine/core";
import { useEffect, useRef, useState } from "react";
import { CopyButton } from "@/components/CopyButton";
import { EmptyState } from "@/components/EmptyState";
import { ErrorState } from "@/components/ErrorState";
import { IconMessageCircle, IconRefresh, IconTool } from "@/components/icons";
import { JsonView } from "@/components/JsonView";
import type { ToolCall } from "./chat-stream";
import { type AssistantTurn, needsToolResults, type ToolTurn, type Turn } from "./conversation";
import { OutputStats } from "./OutputStats";
import classes from "./playground.module.css";
import type { Conversation } from "./useConversation";

export function ChatTurns({ conversation, model }: { conversation: Conversation; model: string }) {
  const { turns } = conversation;
  const end = useStickToEnd(turns);
  const last = turns.at(-1);
  return (
    <Box
      className={classes.turns}
      role="log"
      aria-label={`Conversation with ${model}`}
      aria-live="polite"
      tabIndex={0}
      ref={end}
    >
      {turns.length === 0 && (
        <EmptyState title="Say something to the model" icon={IconMessageCircle}>
          Messages are sent as this account&apos;s own calls: they count towards its usage, and their content is not stored.
        </EmptyState>
      )}
      <Stack gap="md">
        {turns.map((turn) => (
          <TurnView key={turn.id} turn={turn} />
        ))}
        {last?.role === "assistant" && !last.isRunning && (
          <Group gap="xs">
            {needsToolResults(turns) ? (
              <ToolResults calls={last.output.toolCalls} onSend={conversation.sendToolResults} />
            ) : (
              <Button
                variant="subtle"
                color="gray"
                px={6}
                leftSection={<IconRefresh size={14} />}
                onClick={conversation.repeat}
              >
                Run again
              </Button>
            )}
          </Group>
        )}
      </Stack>
    </Box>
  );
}

/** Keep the end in view while text arrives, unless the user scrolled up. */
function useStickToEnd(turns: Turn[]) {
  const box = useRef<HTMLDivElement>(null);
  const isAtEnd = useRef(true);
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const onScroll = () => {
      isAtEnd.current = element.scrollHeight - element.scrollTop - element.clientHeight < 60;
    };
    element.addEventListener("scroll", onScroll, { passive: true });
    return () => element.removeEventListener("scroll", onScroll);
  }, []);
  useEffect(() => {
    if (isAtEnd.current) box.current?.scrollTo({ top: box.current.scrollHeight });
  }, [turns]);
  return box;
}

function TurnView({ turn }: { turn: Turn }) {
  if (turn.role === "assistant") return <AssistantView turn={turn} />;
  if (turn.role === "tool") {
    return (
      <Paper className={classes.tool} p="xs">
        <Text size="xs" c="dimmed">
          Result of <span className="mono">{turn.name}</span>
        </Text>
        <div className={classes.text}>{turn.content}</div>
      </Paper>
    );
  }
  return (
    <article className={classes.user} aria-label="Your message">
      {turn.images.map((url, index) => (
        <img key={index} src={url} alt={`Attached image ${index + 1}`} className={classes.attached} />
      ))}
      <div className={classes.text} dir="auto">
        {turn.content}
      </div>
    </article>
  );
}

function AssistantView({ turn }: { turn: AssistantTurn }) {
  const { output, isRunning, error } = turn;
  const isWaiting = isRunning && output.numChunks === 0;
  return (
    <article className={classes.assistant} aria-label={`Response of ${turn.model}`} aria-busy={isRunning}>
      {output.reasoning !== "" && (
        <details className={classes.reasoning}>
          <summary>Reasoning{isRunning && output.content === "" ? " …" : ""}</summary>
          <div className={classes.text}>{output.reasoning}</div>
        </details>
      )}
      {isWaiting && <Loader role="status" type="dots" size="sm" aria-label="Waiting for the first token" />}
      {output.content !== "" && (
        <div className={classes.text} dir="auto" data-testid="response-text">
          {output.content}
        </div>
      )}
      {output.toolCalls.map((call, index) => (
        <ToolCallView key={index} call={call} />
      ))}
      {Boolean(error) && <ErrorState error={error} title="The call failed" />}
      {!isRunning && !error && output.numChunks === 0 && (
        <Text size="sm" c="dimmed">
          The response is empty.
        </Text>
      )}
      <Group gap="xs" justify="space-between" mt={4}>
        <OutputStats output={output} />
        {!isRunning && output.content !== "" && <CopyButton value={output.content} label="Copy response" />}
      </Group>
    </article>
  );
}

function ToolCallView({ call }: { call: ToolCall }) {
  return (
    <Paper className={classes.tool} p="xs">
      <Group gap={6} mb={4}>
        <IconTool size={14} />
        <Text size="xs">
          Calls <span className="mono name">{call.name}</span>
        </Text>
        {call.id && <Badge variant="default">{call.id.slice(0, 40)}</Badge>}
      </Group>
      <JsonView value={indented(call.arguments)} label={`arguments of ${call.name}`} maxHeight={240} />
    </Paper>
  );
}

function indented(text: string): string {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // arguments that are still arriving are not complete JSON
  }
}

function ToolResults({ calls, onSend }: { calls: ToolCall[]; onSend: (results: Omit<ToolTurn, "role" | "id">[]) => void }) {
  const [results, setResults] = useState<string[]>(() => calls.map(() => ""));
  return (
    <form
      className={classes.toolResults}
      onSubmit={(event) => {
        event.preventDefault();
        onSend(calls.map((call, i) => ({ toolCallId: call.id, name: call.name, content: results[i] ?? "" })));
      }}
    >
      {calls.map((call, index) => (
        <TextInput
          key={call.id || index}
          label={`Result of ${call.name}`}
          placeholder='{"temperature": 12}'
          value={results[index] ?? ""}
          onChange={(event) => {
            const text = event.currentTarget.value;
            setResults((before) => before.map((each, i) => (i === index ? text : each)));
          }}
        />
      ))}
      <Button type="submit" w="fit-content">
        Send results
      </Button>
    </form>
  );
}
