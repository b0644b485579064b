/** Figures of one output: time to first token, speed, tokens. */

import { Group, Text } from "@mantine/core";
import { formatDuration, formatNumber } from "@/lib/format";
import { type Output, tokensPerSecond } from "./chat-stream";

export function OutputStats({ output }: { output: Output }) {
  const speed = tokensPerSecond(output);
  const { usage, finishReason } = output;
  const cached = usage?.prompt_tokens_details?.cached_tokens ?? 0;
  const parts = [
    output.firstTokenMs !== null && `TTFT ${formatDuration(output.firstTokenMs / 1000)}`,
    speed !== null && `${formatNumber(speed)} tokens/s`,
    usage && `${formatNumber(usage.prompt_tokens)} in${cached > 0 ? ` (${formatNumber(cached)} cached)` : ""}`,
    usage && `${formatNumber(usage.completion_tokens)} out`,
    finishReason && finishReason !== "stop" && FINISH_REASONS[finishReason],
  ].filter((part) => typeof part === "string");
  if (parts.length === 0) return null;
  return (
    <Group gap={6} aria-label="Figures of this response" role="group">
      {parts.map((part, index) => (
        <Text key={index} size="xs" c="dimmed">
          {index > 0 && "· "}
          {part}
        </Text>
      ))}
    </Group>
  );
}

const FINISH_REASONS: Record<string, string> = {
  length: "cut off at the token limit",
  tool_calls: "calls tools",
  content_filter: "stopped by a filter",
};
