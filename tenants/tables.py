"""The tenants' rows: accounts, users and their memberships, API tokens and the epoch of decisions, usage, audit.

Column definitions only. No table holds a secret's text: an API token's row, and a user's, hold a keyed hash of it.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
    Text,
)

from storage.database import UtcDateTime, metadata

accounts = Table(
    "accounts",
    metadata,
    Column("account_id", String(32), primary_key=True),
    Column("name", String(256), nullable=False),
    Column("status", String(16), nullable=False, server_default="active"),
    Column("plan", String(32), nullable=False, server_default="standard"),
    Column("created_at", UtcDateTime, nullable=False),
    # The epoch at which what a verifier may remember of this account's tokens last changed; 0 is never.
    Column("decision_epoch", BigInteger, nullable=False, server_default="0"),
    # JSON of what the API calls the account's settings; null is the defaults.
    Column("settings", Text, nullable=True),
    # A deleted account keeps its row, blocked: verifiers must hear of it, and usage and audit still name it.
    Column("deleted_at", UtcDateTime, nullable=True),
    CheckConstraint("status IN ('active', 'blocked')", name="status"),
    Index(None, "decision_epoch"),
)

# A person with accounts of their own choosing and a global key. An account needs none: without, it is its own user.
users = Table(
    "users",
    metadata,
    Column("user_id", String(32), primary_key=True),
    Column("email", String(254), nullable=False, unique=True),
    Column("name", String(256), nullable=False),
    # HMAC-SHA-256 of the global key under the server's pepper; null where there is none.
    Column("global_key_digest", LargeBinary(32), nullable=True),
    Column("created_at", UtcDateTime, nullable=False),
    Column("decision_epoch", BigInteger, nullable=False, server_default="0"),
    Index(None, "decision_epoch"),
)

memberships = Table(
    "memberships",
    metadata,
    Column("user_id", ForeignKey(users.c.user_id), primary_key=True),
    Column("account_id", ForeignKey(accounts.c.account_id), primary_key=True, index=True),
    Column("created_at", UtcDateTime, nullable=False),
)

api_tokens = Table(
    "api_tokens",
    metadata,
    Column("api_token_id", String(32), primary_key=True),
    Column("account_id", ForeignKey(accounts.c.account_id), nullable=False, index=True),
    Column("name", String(256), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("status", String(16), nullable=False, server_default="active"),
    # The first ten characters of the secret: where to look, not what to prove.
    Column("lookup_id", String(10), nullable=False, unique=True),
    # HMAC-SHA-256 of the whole secret under the server's pepper.
    Column("digest", LargeBinary(32), nullable=False),
    # Permission group ids, comma separated; scopes are derived from them when the token is verified. Empty where
    # `policies` says it.
    Column("permission_groups", Text, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("expires_at", UtcDateTime, nullable=True),
    Column("revoked_at", UtcDateTime, nullable=True),
    Column("decision_epoch", BigInteger, nullable=False, server_default="0"),
    # Whose user token this is; null for the account's own.
    Column("user_id", String(32), nullable=True),
    # JSON of tenants.policies.Policy, a list; null: `permission_groups` on `account_id`, and nothing else.
    Column("policies", Text, nullable=True),
    # JSON of tenants.conditions.AddressCondition; null: from anywhere.
    Column("condition", Text, nullable=True),
    Column("not_before", UtcDateTime, nullable=True),
    Column("modified_at", UtcDateTime, nullable=True),
    Index(None, "user_id"),
    CheckConstraint("kind IN ('user', 'account')", name="kind"),
    CheckConstraint("status IN ('active', 'disabled', 'revoked')", name="status"),
    Index(None, "decision_epoch"),
)

# One row, id 1. Raised by every change that a verifier must hear of: polled, so it must stay one small read.
api_token_epoch = Table(
    "api_token_epoch",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("epoch", BigInteger, nullable=False),
)

# One row per admitted call. No foreign keys: what was consumed is kept whatever becomes of the account.
usage_entries = Table(
    "usage_entries",
    metadata,
    Column("request_id", String(64), primary_key=True),
    Column("account_id", String(32), nullable=False),
    Column("api_token_id", String(32), nullable=False),
    Column("model", String(256), nullable=False),
    Column("revision", String(64), nullable=False),
    Column("task", String(64), nullable=False),
    Column("pop", String(64), nullable=False),
    Column("node_id", String(128), nullable=False),
    Column("status", String(32), nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("completion_tokens", BigInteger, nullable=False),
    Column("started_at", UtcDateTime, nullable=False),
    Column("ttft_ms", Float, nullable=True),
    Column("duration_ms", Float, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("micro_neurons", BigInteger, nullable=False),
    Column("is_stream", Boolean, nullable=False),
    Index(None, "account_id", "started_at"),
)

audit_entries = Table(
    "audit_entries",
    metadata,
    Column("audit_id", String(36), primary_key=True),
    Column("at", UtcDateTime, nullable=False),
    Column("who", String(128), nullable=False),
    Column("action", String(64), nullable=False),
    Column("account_id", String(32), nullable=False),
    # The id of what was acted on: an account's, an API token's. Never a secret.
    Column("subject_id", String(64), nullable=False),
    Index(None, "account_id", "at"),
)
