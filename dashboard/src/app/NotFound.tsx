/** Pages for an unknown path, and for a screen that failed. */

import { Button } from "@mantine/core";
import { Link, useRouteError } from "react-router";
import { EmptyState } from "@/components/EmptyState";
import { ErrorState } from "@/components/ErrorState";

export function NotFound() {
  return (
    <EmptyState title="There is no such page" action={<Button component={Link} to="/overview">Go to the overview</Button>}>
      The address may be mistyped, or the object may have been removed.
    </EmptyState>
  );
}

/** A chunk that is missing means that the gateway was updated while the page was open. */
export function ScreenFailure() {
  const error = useRouteError();
  return <ErrorState error={error} title="This screen could not be shown" onRetry={() => window.location.reload()} />;
}
