/**
 * Types of the `result` of management routes, by hand: the OpenAPI document describes requests and the envelope.
 * Fields that a screen does not use are left out.
 */

export type Role = "administrator" | "developer" | "viewer";
export type PlatformRole = "administrator" | "viewer" | null;

export interface Membership {
  account_id: string;
  account_name: string;
  role: Role;
}

export interface Session {
  name: string;
  email: string;
  kind: "user" | "operator";
  user_id: string | null;
  platform_role: PlatformRole;
  memberships: Membership[];
  csrf_token: string;
  ends_at: string;
}

export interface Account {
  id: string;
  name: string;
  type?: string;
  created_on: string;
  settings?: Record<string, unknown>;
}
