/** One API token: change, roll, revoke. */

import { notifications } from "@mantine/notifications";
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useLocation, useNavigate, useParams } from "react-router";
import { client, versioned } from "@/api/client";
import { accountQuery } from "@/app/Shell";
import { usePermissions } from "@/app/session";
import { ErrorState } from "@/components/ErrorState";
import { JsonView } from "@/components/JsonView";
import { PageHeader } from "@/components/PageHeader";
import { State, Time } from "@/components/values";
import type { ApiToken } from "./shapes";
import { bodyOf, isSimple, type TokenValues, valuesOf } from "./token-form";
import { TokenForm } from "./TokenForm";
import { TokenMenu } from "./TokenList";

export function EditToken({ accountId }: { accountId: string }) {
  const { tokenId = "" } = useParams();
  const navigate = useNavigate();
  const queries = useQueryClient();
  const search = accountQuery(useLocation().search);
  const { changeAccount } = usePermissions();
  const params = { path: { account_id: accountId, api_token_id: tokenId } };
  const { data: token, error, refetch } = useQuery({
    queryKey: ["tokens", accountId, tokenId],
    queryFn: () => versioned<ApiToken>(client.GET("/client/v4/accounts/{account_id}/tokens/{api_token_id}", { params })),
    refetchOnWindowFocus: false, // a new version would replace what the user is typing
  });
  if (error) return <ErrorState error={error} title="The token could not be loaded" onRetry={() => void refetch()} />;
  if (!token) return <PageHeader title="API token" />;
  const before = token;
  const toList = () => void navigate({ pathname: "/tokens", search });

  async function save(values: TokenValues) {
    const body = bodyOf(values, accountId, before);
    await client.PUT("/client/v4/accounts/{account_id}/tokens/{api_token_id}", { params, body, headers: { "if-match": before.etag } });
    await queries.invalidateQueries({ queryKey: ["tokens", accountId] });
    notifications.show({ message: "The token is saved.", color: "teal" });
    toList();
  }

  return (
    <>
      <PageHeader
        title={token.name}
        description={
          <>
            <State value={token.status} /> created <Time value={token.issued_on} relative />, last used{" "}
            {token.last_used_on ? <Time value={token.last_used_on} relative /> : "never"} ·{" "}
            <span className="mono">{token.id}</span>
          </>
        }
        actions={changeAccount(accountId) && <TokenMenu accountId={accountId} token={token} search={search} />}
      />
      {changeAccount(accountId) ? (
        <TokenForm
          key={token.etag}
          accountId={accountId}
          initial={valuesOf(token)}
          hasOtherPolicies={!isSimple(token)}
          submit="Save"
          onSubmit={save}
          onCancel={toList}
          onReload={() => void refetch()}
        />
      ) : (
        <JsonView value={token} label="API token" />
      )}
    </>
  );
}
