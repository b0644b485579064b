/** A change that failed. If someone else has changed the object meanwhile, offers to load the current values. */

import { Alert, Button, Group } from "@mantine/core";
import { ApiError } from "@/api/errors";
import { ErrorState } from "./ErrorState";

const CONFLICT = 412;

interface Props {
  error: unknown;
  title: string;
  /** The kind of object, such as "account". */
  object: string;
  onReload?: () => void;
}

export function SaveError({ error, title, object, onReload }: Props) {
  if (!(error instanceof ApiError && error.status === CONFLICT && onReload)) {
    return <ErrorState error={error} title={title} />;
  }
  return (
    <Alert color="yellow" title={`Someone else has changed this ${object}`} role="alert">
      Your changes are not saved and nothing is lost: note them, then load the current values.
      <Group mt="xs">
        <Button variant="default" onClick={onReload}>
          Load the current values
        </Button>
      </Group>
    </Alert>
  );
}
