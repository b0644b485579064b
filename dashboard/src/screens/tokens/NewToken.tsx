/** Create an API token; afterwards its secret and a call that uses it. */

import { Button, Group, Stack } from "@mantine/core";
import { useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { Link, useLocation, useNavigate } from "react-router";
import { client, result } from "@/api/client";
import { accountQuery } from "@/app/Shell";
import { JsonView } from "@/components/JsonView";
import { PageHeader } from "@/components/PageHeader";
import { Panel } from "@/components/Panel";
import { SecretOnce } from "@/components/SecretOnce";
import { usePermissionGroups } from "./queries";
import type { ApiToken } from "./shapes";
import { bodyOf, EMPTY, type TokenValues } from "./token-form";
import { TokenForm } from "./TokenForm";

type Created = ApiToken & { value: string };

export function NewToken({ accountId }: { accountId: string }) {
  const navigate = useNavigate();
  const search = accountQuery(useLocation().search);
  const queries = useQueryClient();
  const groups = usePermissionGroups(accountId);
  const [created, setCreated] = useState<Created | null>(null);
  if (created) return <CreatedToken token={created} accountId={accountId} search={search} />;
  if (groups.isPending) return <PageHeader title="Create API token" />;
  const usual = groups.data?.find((group) => group.name === "Workers AI Read");

  async function create(values: TokenValues) {
    const params = { path: { account_id: accountId } };
    const body = bodyOf(values, accountId);
    setCreated(await result<Created>(client.POST("/client/v4/accounts/{account_id}/tokens", { params, body })));
    void queries.invalidateQueries({ queryKey: ["tokens", accountId] });
  }

  return (
    <>
      <PageHeader title="Create API token" description="The secret is shown once, after the token is created." />
      <TokenForm
        accountId={accountId}
        initial={{ ...EMPTY, groups: usual ? [usual.id] : [] }}
        submit="Create token"
        onSubmit={create}
        onCancel={() => void navigate({ pathname: "/tokens", search })}
      />
    </>
  );
}

function CreatedToken({ token, accountId, search }: { token: Created; accountId: string; search: string }) {
  const url = `${window.location.origin}/client/v4/accounts/${accountId}/ai/v1`;
  // Without a model, the platform's chat model answers; a token for some models must name one of them.
  const model = token.models?.[0];
  const body = JSON.stringify({ ...(model && { model }), messages: [{ role: "user", content: "Hello" }] });
  const curl = [
    `curl ${url}/chat/completions \\`,
    `  -H "Authorization: Bearer ${token.value}" \\`,
    `  -H "Content-Type: application/json" \\`,
    `  -d '${body}'`,
  ].join("\n");
  return (
    <>
      <PageHeader title="The token is created" description={token.name.slice(0, 200)} />
      <Stack gap="md" maw={860}>
        <Panel title="Secret">
          <SecretOnce label="Secret of the token" value={token.value} />
        </Panel>
        <Panel title="Use it" description={<>Base URL for OpenAI clients: <span className="mono">{url}</span></>}>
          <JsonView value={curl} label="curl command" />
        </Panel>
        <Group gap="xs">
          <Button component={Link} to={{ pathname: "/tokens", search }}>
            Done
          </Button>
          <Button component={Link} to={{ pathname: "/playground", search }} variant="default">
            Open the playground
          </Button>
        </Group>
      </Stack>
    </>
  );
}
