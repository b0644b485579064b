/** State of one conversation with one model: its turns, and the run that extends them. */

import { useCallback, useEffect, useRef, useState } from "react";
import { EMPTY_OUTPUT } from "./chat-stream";
import { messagesOf, type AssistantTurn, type ToolTurn, type Turn } from "./conversation";
import { streamRun } from "./stream-run";

export interface ChatRequest {
  accountId: string;
  model: string;
  systemPrompt: string;
  /** Fields of the body besides `model` and `messages`. */
  body: Record<string, unknown>;
}

export interface Conversation {
  turns: Turn[];
  isRunning: boolean;
  sendText: (text: string, images: string[]) => void;
  sendToolResults: (results: Omit<ToolTurn, "role" | "id">[]) => void;
  repeat: () => void;
  stop: () => void;
  clear: () => void;
}

let lastId = 0;
const nextId = () => (lastId += 1);

export function useConversation(request: ChatRequest): Conversation {
  const [turns, setTurns] = useState<Turn[]>([]);
  const controller = useRef<AbortController | null>(null);
  const latest = useRef(request);
  useEffect(() => {
    latest.current = request;
  });
  useEffect(() => () => controller.current?.abort(), []);

  const run = useCallback(async (history: Turn[]) => {
    const { accountId, model, systemPrompt, body } = latest.current;
    const turn: AssistantTurn = { role: "assistant", id: nextId(), model, output: EMPTY_OUTPUT, error: null, isRunning: true };
    const update = (fields: Partial<AssistantTurn>) =>
      setTurns((before) => before.map((each) => (each.id === turn.id ? ({ ...each, ...fields } as Turn) : each)));
    setTurns([...history, turn]);
    const aborter = new AbortController();
    controller.current = aborter;
    try {
      const output = await streamRun({
        accountId,
        route: "chat/completions",
        body: { model, messages: messagesOf(history, systemPrompt), ...body },
        signal: aborter.signal,
        onOutput: (partial) => !aborter.signal.aborted && update({ output: partial }),
      });
      update({ output, isRunning: false });
    } catch (error) {
      update({ error: aborter.signal.aborted ? null : error, isRunning: false });
    } finally {
      if (controller.current === aborter) controller.current = null;
    }
  }, []);

  const sendText: Conversation["sendText"] = (content, images) =>
    void run([...turns, { role: "user", id: nextId(), content, images }]);
  const sendToolResults: Conversation["sendToolResults"] = (results) =>
    void run([...turns, ...results.map((each): ToolTurn => ({ role: "tool", id: nextId(), ...each }))]);
  const repeat = () => void run(turns.at(-1)?.role === "assistant" ? turns.slice(0, -1) : turns);
  const stop = () => controller.current?.abort();
  const clear = () => {
    stop();
    setTurns([]);
  };
  const isRunning = turns.some((turn) => turn.role === "assistant" && turn.isRunning);
  return { turns, isRunning, sendText, sendToolResults, repeat, stop, clear };
}
