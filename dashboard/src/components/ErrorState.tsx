/** A failed request: what went wrong, with its code and request id, and a button to try again. */

import { Alert, Button, Group, Text } from "@mantine/core";
import { ApiError } from "@/api/errors";
import { CopyButton } from "./CopyButton";
import { IconAlertCircle } from "./icons";

interface Props {
  error: unknown;
  title?: string;
  onRetry?: () => void;
}

export function ErrorState({ error, title = "The request failed", onRetry }: Props) {
  const message = error instanceof Error ? error.message : String(error);
  const isApiError = error instanceof ApiError;
  return (
    <Alert color="red" variant="outline" bg="var(--hearth-panel)" icon={<IconAlertCircle />} title={title} role="alert">
      <Text size="sm" className="name">
        {message}
      </Text>
      <Group gap="md" mt={6}>
        {isApiError && (
          <Text size="xs" c="dimmed" className="mono">
            code {error.code}
            {error.status > 0 && error.status !== error.code && ` · status ${error.status}`}
            {error.requestId && ` · request ${error.requestId}`}
          </Text>
        )}
        {isApiError && error.requestId && <CopyButton value={error.requestId} label="Copy request id" />}
        {onRetry && (
          <Button variant="default" onClick={onRetry}>
            Try again
          </Button>
        )}
      </Group>
    </Alert>
  );
}
