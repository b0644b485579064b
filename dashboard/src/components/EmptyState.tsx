/** What a list shows when it has no rows: why, and what to do next. */

import { Box, Stack, Text } from "@mantine/core";
import type { ReactNode } from "react";
import { type Icon, IconInbox } from "./icons";

interface Props {
  title: string;
  children?: ReactNode;
  action?: ReactNode;
  icon?: Icon;
}

export function EmptyState({ title, children, action, icon: Icon = IconInbox }: Props) {
  return (
    <Stack align="center" gap={6} py="xl" px="md" ta="center">
      <Box c="dimmed">
        <Icon size={28} />
      </Box>
      <Text fw={600}>{title}</Text>
      {children && (
        <Text c="dimmed" size="sm" maw={460} component="div">
          {children}
        </Text>
      )}
      {action && <Box mt="xs">{action}</Box>}
    </Stack>
  );
}
