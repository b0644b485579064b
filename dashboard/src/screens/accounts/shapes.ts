/** Results of the routes of accounts, members and invitations. */

export interface Region {
  countries?: string[];
  jurisdictions?: string[];
}

export interface AccountDetail {
  id: string;
  name: string;
  type: "standard" | "enterprise";
  created_on: string;
  settings: {
    enforce_twofactor: boolean;
    abuse_contact_email: string | null;
    region?: Region;
    retention?: "standard" | "zero";
  };
}

export interface AccountRole {
  id: string;
  name: string;
  description: string;
}

export interface Member {
  id: string;
  email: string;
  status: "accepted" | "pending";
  roles: AccountRole[];
  user: { id: string | null; email: string; first_name: string | null; last_name: string | null };
  version: string;
}

export interface Invitation {
  id: string;
  account: AccountDetail;
  roles: string[];
  status: "accepted" | "pending";
}

export interface Operation {
  account_id: string;
  status: "active" | "blocked";
  plan: "free" | "paid" | "enterprise";
  limits: string;
  retention: "standard" | "zero";
  region: Region | null;
  version: string;
}
