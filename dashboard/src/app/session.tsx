/** The signed-in user, the selected account, and what the user may do. */

import { useQuery } from "@tanstack/react-query";
import { createContext, useContext } from "react";
import { useSearchParams } from "react-router";
import { client, page, requestJson, setCsrfToken } from "@/api/client";
import { ApiError } from "@/api/errors";
import type { Account, Session } from "@/api/shapes";

export const SESSION_KEY = ["session"];

/** Return the session, or null if nobody is signed in. */
export async function loadSession(): Promise<Session | null> {
  try {
    const session = await requestJson<Session>("GET", "/admin/session");
    setCsrfToken(session.csrf_token);
    return session;
  } catch (error) {
    if (error instanceof ApiError && error.status === 401) return null;
    throw error;
  }
}

export const SessionContext = createContext<Session | null>(null);

/** Return the session of the signed-in user. Only below the shell, which renders nothing without a session. */
export function useSession(): Session {
  const session = useContext(SessionContext);
  if (!session) throw new Error("useSession is only available to signed-in screens");
  return session;
}

export interface Permissions {
  /** May read platform routes. */
  platform: boolean;
  /** May change the platform. */
  changePlatform: boolean;
  /** May change settings, members and tokens of the account. */
  changeAccount: (accountId: string) => boolean;
  /** May call models and upload finetunes on the account. */
  runModels: (accountId: string) => boolean;
}

export function permissionsOf(session: Session): Permissions {
  const roles = new Map(session.memberships.map((item) => [item.account_id, item.role]));
  const isAdministrator = session.platform_role === "administrator";
  return {
    platform: session.platform_role !== null,
    changePlatform: isAdministrator,
    changeAccount: (accountId) => isAdministrator || roles.get(accountId) === "administrator",
    runModels: (accountId) => ["administrator", "developer"].includes(roles.get(accountId) ?? ""),
  };
}

export function usePermissions(): Permissions {
  return permissionsOf(useSession());
}

/** Return all accounts that the user may read, by name. */
export function useAccounts() {
  return useQuery({
    queryKey: ["accounts", "all"],
    queryFn: async () => {
      const accounts: Account[] = [];
      for (let number = 1; ; number += 1) {
        const query = { page: number, per_page: 50 };
        const { items, info } = await page<Account>(client.GET("/client/v4/accounts", { params: { query } }));
        accounts.push(...items);
        if (items.length === 0 || accounts.length >= (info.total_count ?? 0) || number >= 20) return accounts;
      }
    },
    staleTime: 60_000,
  });
}

/** Return the account in the query string, or null, which stands for all accounts. */
export function useChosenAccountId(): string | null {
  const [query] = useSearchParams();
  const session = useSession();
  const chosen = query.get("account");
  if (chosen) return chosen;
  return session.platform_role === null ? (session.memberships[0]?.account_id ?? null) : null;
}

/**
 * Return the account that a screen of one account shows: the chosen one, else the user's first membership, else the
 * first account. Null only while accounts load or if there is none.
 */
export function useAccountId(): string | null {
  const chosen = useChosenAccountId();
  const session = useSession();
  const accounts = useAccounts();
  return chosen ?? session.memberships[0]?.account_id ?? accounts.data?.[0]?.id ?? null;
}
