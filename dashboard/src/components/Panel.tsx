/** A titled box of a screen. */

import { Group, Paper, Text, Title } from "@mantine/core";
import type { ReactNode } from "react";

interface Props {
  title?: string;
  description?: ReactNode;
  actions?: ReactNode;
  children: ReactNode;
  /** Let the content reach the border: for tables. */
  isFlush?: boolean;
}

export function Panel({ title, description, actions, children, isFlush = false }: Props) {
  return (
    <Paper component="section" aria-label={title} p={isFlush ? 0 : "md"} style={{ overflow: "hidden" }} miw={0}>
      {(title || actions) && (
        <Group justify="space-between" gap="xs" px={isFlush ? "md" : 0} pt={isFlush ? "sm" : 0} pb="sm">
          <div style={{ minWidth: 0, flex: 1 }}>
            {title && <Title order={2}>{title}</Title>}
            {description && (
              <Text size="xs" c="dimmed" component="div">
                {description}
              </Text>
            )}
          </div>
          {actions && <Group gap="xs">{actions}</Group>}
        </Group>
      )}
      {children}
    </Paper>
  );
}
