/** A secret that the gateway returns only once. */

import { Alert, Group, Stack, Text, TextInput } from "@mantine/core";
import { CopyButton } from "./CopyButton";
import { IconAlertTriangle } from "./icons";

export function SecretOnce({ label, value }: { label: string; value: string }) {
  return (
    <Stack gap="sm">
      <Alert color="yellow" icon={<IconAlertTriangle />}>
        <Text size="sm">Copy the secret now. It is shown only once and cannot be read again.</Text>
      </Alert>
      <Group align="end" gap="xs" wrap="nowrap">
        <TextInput
          label={label}
          value={value}
          readOnly
          flex={1}
          classNames={{ input: "mono" }}
          onFocus={(event) => event.currentTarget.select()}
        />
        <CopyButton value={value} label="Copy" withText />
      </Group>
    </Stack>
  );
}
