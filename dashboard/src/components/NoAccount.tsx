/** What a screen of one account shows while accounts load, or if the user has none. */

import { Button, Center, Loader } from "@mantine/core";
import { Link } from "react-router";
import { useAccounts, usePermissions } from "@/app/session";
import { EmptyState } from "./EmptyState";
import { ErrorState } from "./ErrorState";
import { IconUsers } from "./icons";
import { PageHeader } from "./PageHeader";

export function NoAccount({ title }: { title: string }) {
  const { error, isPending, refetch } = useAccounts();
  const { changePlatform } = usePermissions();
  return (
    <>
      <PageHeader title={title} />
      {isPending && (
        <Center h={200}>
          <Loader role="status" size="sm" aria-label="Loading" />
        </Center>
      )}
      {error && <ErrorState error={error} onRetry={() => void refetch()} />}
      {!isPending && !error && (
        <EmptyState
          icon={IconUsers}
          title="There is no account yet"
          action={changePlatform && <Button component={Link} to="/accounts?new=1">Create an account</Button>}
        >
          Models, API tokens and usage belong to an account.
          {!changePlatform && " Ask an administrator to invite you to one."}
        </EmptyState>
      )}
    </>
  );
}
