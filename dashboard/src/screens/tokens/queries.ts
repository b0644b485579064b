import { useQuery } from "@tanstack/react-query";
import { client, page, result } from "@/api/client";
import type { ApiToken, PermissionGroup } from "./shapes";

const MAX_PAGES = 40;
const PER_PAGE = 50;

/** Load all tokens of an account, including expired ones. */
async function loadTokens(accountId: string): Promise<ApiToken[]> {
  const tokens: ApiToken[] = [];
  for (let number = 1; number <= MAX_PAGES; number += 1) {
    const query = { page: number, per_page: PER_PAGE, include_expired: true };
    const params = { path: { account_id: accountId }, query };
    const { items, info } = await page<ApiToken>(client.GET("/client/v4/accounts/{account_id}/tokens", { params }));
    tokens.push(...items);
    if (items.length === 0 || tokens.length >= (info.total_count ?? 0)) break;
  }
  return tokens;
}

export function useTokens(accountId: string, enabled = true) {
  return useQuery({ queryKey: ["tokens", accountId], queryFn: () => loadTokens(accountId), enabled });
}

export function usePermissionGroups(accountId: string) {
  return useQuery({
    queryKey: ["permission-groups", accountId],
    queryFn: () =>
      result<PermissionGroup[]>(
        client.GET("/client/v4/accounts/{account_id}/tokens/permission_groups", {
          params: { path: { account_id: accountId } },
        }),
      ),
    staleTime: Number.POSITIVE_INFINITY,
  });
}

/** Return the names of the models that the account can call, for completion in forms. */
export function useModelNames(accountId: string) {
  return useQuery({
    queryKey: ["model-names", accountId],
    queryFn: async () => {
      const params = { path: { account_id: accountId }, query: { per_page: 100 } };
      const { items } = await page<{ name: string }>(
        client.GET("/client/v4/accounts/{account_id}/ai/models/search", { params }),
      );
      return items.map((model) => model.name);
    },
    staleTime: 60_000,
  });
}
