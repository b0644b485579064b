/** Device memory of a node as a bar: weights, KV cache in use, free KV cache, and the rest. */

import { Group, Text } from "@mantine/core";
import { formatBytes } from "@/lib/format";
import classes from "./fleet.module.css";
import { memoryOf, type FleetNode, type Memory } from "./nodes";

const PARTS: [keyof Memory, string][] = [
  ["weights", "weights"],
  ["kvUsed", "KV in use"],
  ["kvFree", "KV free"],
  ["free", "free"],
];

export function MemoryBar({ node, hasLegend = false }: { node: FleetNode; hasLegend?: boolean }) {
  const memory = memoryOf(node);
  const label = PARTS.map(([part, name]) => `${name} ${formatBytes(memory[part])}`).join(", ");
  if (memory.total === 0) return <Text size="xs" c="dimmed">not reported</Text>;
  return (
    <div>
      <div className={classes.memory} role="img" aria-label={`Memory of ${formatBytes(memory.total)}: ${label}`} title={label}>
        {PARTS.slice(0, 3).map(([part]) => (
          <div key={part} data-part={part} style={{ width: `${(memory[part] / memory.total) * 100}%` }} />
        ))}
      </div>
      {hasLegend && (
        <Group gap="md" mt={6}>
          {PARTS.map(([part, name]) => (
            <Group gap={6} key={part}>
              <span className={classes.swatch} data-part={part} />
              <Text size="xs" c="dimmed">
                {name} {formatBytes(memory[part])}
              </Text>
            </Group>
          ))}
        </Group>
      )}
    </div>
  );
}
