/** The values of the token form, and the request body that they stand for. Pure. */

import type { ApiToken, Policy } from "./shapes";

export interface TokenValues {
  name: string;
  groups: string[];
  onlySomeModels: boolean;
  models: string[];
  networks: string[];
  blockedNetworks: string[];
  notBefore: string;
  expiresOn: string;
  limits: string;
  isDisabled: boolean;
}

export const EMPTY: TokenValues = {
  name: "",
  groups: [],
  onlySomeModels: false,
  models: [],
  networks: [],
  blockedNetworks: [],
  notBefore: "",
  expiresOn: "",
  limits: "",
  isDisabled: false,
};

/** Return the text of a time for an input of type `datetime-local`, in the local zone. */
export function toLocalInput(time: string | undefined): string {
  if (!time) return "";
  const date = new Date(time);
  return new Date(date.getTime() - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}

function fromLocalInput(text: string): string | null {
  return text ? new Date(text).toISOString() : null;
}

/** Return True if the form can show all of a token: one policy that allows groups on the account. */
export function isSimple(token: ApiToken): boolean {
  return token.policies.length === 1 && token.policies[0]?.effect === "allow";
}

export function valuesOf(token: ApiToken): TokenValues {
  return {
    name: token.name,
    groups: token.policies[0]?.permission_groups.map((group) => group.id) ?? [],
    onlySomeModels: token.models !== undefined,
    models: token.models ?? [],
    networks: token.condition?.request_ip?.in ?? [],
    blockedNetworks: token.condition?.request_ip?.not_in ?? [],
    notBefore: toLocalInput(token.not_before),
    expiresOn: toLocalInput(token.expires_on),
    limits: token.limits ?? "",
    isDisabled: token.status === "disabled",
  };
}

/** Return the body that creates or replaces a token. What the form does not show is taken from `before`. */
export function bodyOf(values: TokenValues, accountId: string, before?: ApiToken) {
  const groups = values.groups.map((id) => ({ id }));
  const own: Policy[] = [
    {
      effect: "allow",
      permission_groups: groups as Policy["permission_groups"],
      resources: { [`com.cloudflare.api.account.${accountId}`]: "*" },
    },
  ];
  const kept = before && !isSimple(before) ? before.policies : null;
  const policies = (kept ?? own).map(({ effect, permission_groups, resources }) => ({
    effect,
    permission_groups: permission_groups.map(({ id }) => ({ id })),
    resources: resources as Record<string, "*">,
  }));
  const hasNetworks = values.networks.length > 0 || values.blockedNetworks.length > 0;
  return {
    name: values.name.trim(),
    policies,
    status: values.isDisabled ? ("disabled" as const) : ("active" as const),
    condition: hasNetworks ? { request_ip: { in: values.networks, not_in: values.blockedNetworks } } : null,
    not_before: fromLocalInput(values.notBefore),
    expires_on: fromLocalInput(values.expiresOn),
    models: values.onlySomeModels ? values.models : null,
    limits: values.limits.trim() || null,
    region: before?.region ?? null,
  };
}
