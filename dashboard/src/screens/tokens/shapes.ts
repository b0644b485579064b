/** Results of `/accounts/{account_id}/tokens`. */

export interface PermissionGroup {
  id: string;
  name: string;
}

export interface Policy {
  id?: string;
  effect: "allow" | "deny";
  permission_groups: PermissionGroup[];
  resources: Record<string, string>;
}

export interface Region {
  countries?: string[];
  jurisdictions?: string[];
}

export interface ApiToken {
  id: string;
  name: string;
  status: "active" | "disabled" | "expired";
  issued_on: string;
  modified_on: string;
  last_used_on?: string;
  not_before?: string;
  expires_on?: string;
  policies: Policy[];
  models?: string[];
  limits?: string;
  region?: Region | null;
  condition?: { request_ip?: { in?: string[]; not_in?: string[] } };
}
