/** Title of a screen, one sentence about it, and its actions. */

import { Box, Group, Text, Title } from "@mantine/core";
import { type ReactNode, useEffect } from "react";

interface Props {
  title: string;
  description?: ReactNode;
  actions?: ReactNode;
}

export function PageHeader({ title, description, actions }: Props) {
  useEffect(() => {
    document.title = `${title.slice(0, 80)} · Hearth`;
  }, [title]);
  return (
    <Group justify="space-between" align="flex-start" gap="sm" className="page-header">
      <Box miw={0} flex="1 1 260px">
        <Title order={1} className="name" dir="auto">
          {title}
        </Title>
        {description && (
          <Text size="sm" c="dimmed" component="div">
            {description}
          </Text>
        )}
      </Box>
      {actions && <Group gap="xs">{actions}</Group>}
    </Group>
  );
}
