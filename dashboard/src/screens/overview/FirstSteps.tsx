/** What to do on a platform that has served no call yet. */

import { Button, Group, Text } from "@mantine/core";
import { Link, useLocation } from "react-router";
import { accountQuery } from "@/app/Shell";
import { IconKey, IconMessageCircle } from "@/components/icons";
import { Panel } from "@/components/Panel";

export function FirstSteps() {
  const search = accountQuery(useLocation().search);
  return (
    <Panel title="No calls in the last hour">
      <Text size="sm" c="dimmed" mb="sm">
        Try a model in the playground, or create an API token and call the platform from a program.
      </Text>
      <Group gap="xs">
        <Button component={Link} to={{ pathname: "/playground", search }} leftSection={<IconMessageCircle />}>
          Open the playground
        </Button>
        <Button component={Link} to={{ pathname: "/tokens/new", search }} variant="default" leftSection={<IconKey />}>
          Create an API token
        </Button>
      </Group>
    </Panel>
  );
}
