"""Tables of the tenants: accounts, users, sign-in links, memberships, API tokens, usage and its sums, budgets, scaling
rules, audit, batches, webhooks, stored responses, and idempotency keys.

Column definitions only. No table contains a secret: rows of API tokens, users and sign-in links have a keyed hash.
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
    false,
)

from storage.columns import only_row
from storage.database import UtcDateTime, metadata


def _numbers(*names: str, default: str | None = None) -> list[Column[int]]:
    return [Column(name, BigInteger, nullable=False, server_default=default) for name in names]


accounts = Table(
    "accounts",
    metadata,
    Column("account_id", String(32), primary_key=True),
    Column("name", String(256), nullable=False),
    Column("status", String(16), nullable=False, server_default="active"),
    Column("plan", String(32), nullable=False, server_default="paid"),
    Column("created_at", UtcDateTime, nullable=False),
    # Epoch of the last change that verifiers of this account's tokens must see; 0 if never changed.
    Column("decision_epoch", BigInteger, nullable=False, server_default="0"),
    # JSON of the account's settings in the API; null for defaults.
    Column("settings", Text, nullable=True),
    # JSON of tenants.residency.RegionRule: where the account's calls may run; null for anywhere.
    Column("region", Text, nullable=True),
    # Retention of content: `standard`, or `zero` (tenants.residency.RETENTION_RULES).
    Column("retention", String(16), nullable=False, server_default="standard"),
    # Rules of tenants.quota.limits for this account that replace the operator's.
    Column("limits", Text, nullable=False, server_default=""),
    # JSON list of the models that the account may not run; null for none.
    Column("disabled_models", Text, nullable=True),
    # A deleted account keeps its row and is blocked: verifiers must see it, and usage and audit entries name it.
    Column("deleted_at", UtcDateTime, nullable=True),
    CheckConstraint("status IN ('active', 'blocked')", name="status"),
    Index(None, "decision_epoch"),
)

# A person with accounts, a global key or a password. An account without a user acts as its own user.
users = Table(
    "users",
    metadata,
    Column("user_id", String(32), primary_key=True),
    Column("email", String(254), nullable=False, unique=True),
    Column("name", String(256), nullable=False),
    # HMAC-SHA-256 of the global key under the server's pepper; null if there is no key.
    Column("global_key_digest", LargeBinary(32), nullable=True),
    Column("created_at", UtcDateTime, nullable=False),
    Column("decision_epoch", BigInteger, nullable=False, server_default="0"),
    # JSON of tenants.users.Profile: the user's profile besides the name; null if empty.
    Column("profile", Text, nullable=True),
    # Argon2id hash of the password; null if the user has none.
    Column("password_hash", String(256), nullable=True),
    # Role on the whole platform, one of tenants.credentials.roles.OPERATOR_ROLES; null for none.
    Column("platform_role", String(16), nullable=True),
    # Incremented to end all browser sessions of the user: sessions with another number are rejected.
    Column("session_generation", Integer, nullable=False, server_default="0"),
    Index(None, "decision_epoch"),
)

# One-time sign-in links. A row is deleted when its link is used.
sign_in_links = Table(
    "sign_in_links",
    metadata,
    # HMAC-SHA-256 of the link's token under the server's pepper.
    Column("digest", LargeBinary(32), primary_key=True),
    Column("user_id", ForeignKey(users.c.user_id), nullable=False, index=True),
    Column("expires_at", UtcDateTime, nullable=False),
)

node_join_tokens = Table(
    "node_join_tokens",
    metadata,
    Column("digest", LargeBinary(32), primary_key=True),  # SHA-256 of the token
    Column("pop", String(64), nullable=False),
    Column("node_id", String(64), nullable=False),  # "" for any node
    Column("created_at", UtcDateTime, nullable=False),
    Column("expires_at", UtcDateTime, nullable=False),
    Column("used_at", UtcDateTime, nullable=True),
)

node_keys = Table(
    "node_keys",
    metadata,
    Column("kid", String(32), primary_key=True),
    Column("subject", String(80), nullable=False),
    Column("public", String(64), nullable=False),
    Column("not_before", BigInteger, nullable=False),
    Column("not_after", BigInteger, nullable=False),
    Column("pop", String(64), nullable=False),
)

memberships = Table(
    "memberships",
    metadata,
    Column("user_id", ForeignKey(users.c.user_id), primary_key=True),
    Column("account_id", ForeignKey(accounts.c.account_id), primary_key=True, index=True),
    Column("created_at", UtcDateTime, nullable=False),
    # One of tenants.credentials.roles: the upper bound of the member's permissions.
    Column("role", String(16), nullable=False, server_default="administrator"),
)

# Invitations to accounts, by lower-case email address. An accepted invitation becomes a membership.
invitations = Table(
    "invitations",
    metadata,
    Column("account_id", ForeignKey(accounts.c.account_id), primary_key=True),
    Column("email", String(254), primary_key=True, index=True),
    Column("role", String(16), nullable=False),
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
    # The first ten characters of the secret, for lookup only.
    Column("lookup_id", String(10), nullable=False, unique=True),
    # HMAC-SHA-256 of the whole secret under the server's pepper.
    Column("digest", LargeBinary(32), nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("expires_at", UtcDateTime, nullable=True),
    Column("revoked_at", UtcDateTime, nullable=True),
    Column("decision_epoch", BigInteger, nullable=False, server_default="0"),
    # The user who owns the token; null for an account token.
    Column("user_id", String(32), nullable=True),
    # JSON list of tenants.credentials.policies.Policy; scopes are derived from it when the token is verified.
    Column("policies", Text, nullable=False),
    # JSON of tenants.credentials.conditions.AddressCondition; null for any address.
    Column("condition", Text, nullable=True),
    Column("not_before", UtcDateTime, nullable=True),
    Column("modified_at", UtcDateTime, nullable=True),
    # JSON of tenants.residency.RegionRule, in addition to the account's; null for none.
    Column("region", Text, nullable=True),
    # Rules of tenants.quota.limits for this token that replace the operator's and the account's.
    Column("limits", Text, nullable=False, server_default=""),
    # JSON list of the only model ids the token may run; null for all.
    Column("models", Text, nullable=True),
    # Accurate to about half a minute; null if never used.
    Column("last_used_at", UtcDateTime, nullable=True),
    Index(None, "user_id"),
    CheckConstraint("kind IN ('user', 'account')", name="kind"),
    CheckConstraint("status IN ('active', 'disabled', 'revoked')", name="status"),
    Index(None, "decision_epoch"),
)

# Incremented by every change that verifiers must see. Polled, so it must stay one small read.
api_token_epoch = Table(
    "api_token_epoch",
    metadata,
    only_row(),
    Column("epoch", BigInteger, nullable=False),
)

# One row per admitted call. No foreign keys: usage is kept when the account is deleted.
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
    *_numbers("prompt_tokens", "cached_tokens", "completion_tokens"),
    Column("started_at", UtcDateTime, nullable=False),
    Column("ttft_ms", Float, nullable=True),
    Column("duration_ms", Float, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("micro_neurons", BigInteger, nullable=False),
    Column("is_stream", Boolean, nullable=False),
    # Microseconds of device time charged to the call, and bytes of the request body and of the output.
    *_numbers("device_us", "bytes_in", "bytes_out", "num_tool_calls", default="0"),
    # Price units of tasks other than text.
    *_numbers("num_steps", "audio_ms", "num_image_tiles", default="0"),
    # Earlier useful responses that this call's client requested again: 0 or 1.
    *_numbers("num_retried", default="0"),
    Column("is_useful", Boolean, nullable=False, server_default=false()),
    Column("is_batch", Boolean, nullable=False, server_default=false()),
    # Microseconds on the node: waiting, then until the first token, then until the last; 0 if unknown.
    *_numbers("queue_us", "prefill_us", "decode_us", default="0"),
    # Comma-separated ids of the nodes that were tried, in order; "" if only `node_id` was.
    Column("tried_nodes", String(512), nullable=False, server_default=""),
    Index(None, "account_id", "started_at"),
    Index(None, "started_at"),
)

# Sums over usage entries, written in the same transaction. A call is counted in exactly one row: its minute's, until
# that row is merged into its hour's, and later into its day's. After entries are deleted, these sums are the only basis
# for costs.
usage_sums = Table(
    "usage_sums",
    metadata,
    Column("account_id", String(32), primary_key=True),
    Column("starts_at", UtcDateTime, primary_key=True),
    # minute, hour or day
    Column("period", String(8), primary_key=True),
    Column("model", String(256), primary_key=True),
    Column("api_token_id", String(32), primary_key=True),
    Column("task", String(64), primary_key=True),
    Column("pop", String(64), primary_key=True),
    Column("status", String(32), primary_key=True),
    *_numbers("num_calls", "num_useful", "prompt_tokens", "cached_tokens", "completion_tokens", "micro_neurons"),
    *_numbers("device_us", "bytes_in", "bytes_out", "num_tool_calls", "num_attempts"),
    Index(None, "period", "starts_at"),
)

# The ledger's position in each gateway's spool, written with the entries: a database that is behind the spool's
# confirmed position is an older copy, and entries are sent again.
usage_spools = Table(
    "usage_spools",
    metadata,
    Column("spool_id", String(36), primary_key=True),
    Column("segment", BigInteger, nullable=False),
    Column("offset", BigInteger, nullable=False),
    Column("moved_at", UtcDateTime, nullable=False),
)

# Monthly budget of an account, or of one API token ("" is the whole account).
budgets = Table(
    "budgets",
    metadata,
    Column("account_id", String(32), primary_key=True),
    Column("api_token_id", String(32), primary_key=True),
    # neurons or usd
    Column("unit", String(8), primary_key=True),
    # Millionths of the unit.
    Column("micro_amount", BigInteger, nullable=False),
    # True if calls beyond the budget are rejected; otherwise the budget only warns.
    Column("refuses", Boolean, nullable=False),
    # Comma-separated, such as 50,80,100.
    Column("alert_percents", String(64), nullable=False),
    Column("modified_at", UtcDateTime, nullable=False),
    CheckConstraint("unit IN ('neurons', 'usd')", name="unit"),
)

# Rules of tenants.scaling_rules. An empty PoP stands for all PoPs together.
scaling_overrides = Table(
    "scaling_overrides",
    metadata,
    Column("model", String(224), primary_key=True),
    Column("pop", String(64), primary_key=True),
    Column("min_replicas", Integer, nullable=False),
    # Null for no limit.
    Column("max_replicas", Integer, nullable=True),
    Column("is_pinned", Boolean, nullable=False),
    Column("modified_at", UtcDateTime, nullable=False),
)

capacity_reservations = Table(
    "capacity_reservations",
    metadata,
    Column("account_id", String(32), primary_key=True),
    Column("model", String(224), primary_key=True),
    Column("pop", String(64), primary_key=True),
    Column("tokens_per_s", Float, nullable=False),
    Column("modified_at", UtcDateTime, nullable=False),
)

# One row per passed threshold of a budget and month; the id is derived from these.
budget_alerts = Table(
    "budget_alerts",
    metadata,
    Column("alert_id", String(128), primary_key=True),
    Column("account_id", String(32), nullable=False),
    Column("api_token_id", String(32), nullable=False),
    Column("unit", String(8), nullable=False),
    Column("month", String(7), nullable=False),
    Column("percent", Integer, nullable=False),
    Column("micro_amount", BigInteger, nullable=False),
    Column("micro_used", BigInteger, nullable=False),
    Column("at", UtcDateTime, nullable=False),
    Index(None, "account_id", "at"),
)

audit_entries = Table(
    "audit_entries",
    metadata,
    Column("audit_id", String(36), primary_key=True),
    Column("at", UtcDateTime, nullable=False),
    Column("actor", String(128), nullable=False),
    Column("action", String(64), nullable=False),
    Column("account_id", String(32), nullable=False),
    # The id of the affected object: an account, an API token. Never a secret.
    Column("subject_id", String(64), nullable=False),
    # A short description of the change; never a secret, never content.
    Column("detail", Text, nullable=False, server_default=""),
    # Position in the hash chain, from 1, and SHA-256 over the previous digest and all fields of the entry. Database
    # triggers reject every update and delete.
    Column("sequence", BigInteger, nullable=False),
    Column("digest", LargeBinary(32), nullable=False),
    Index(None, "account_id", "at"),
    Index(None, "sequence", unique=True),
)

# Position and digest of the newest entry. Appending locks this row, so that entries form one chain.
audit_head = Table(
    "audit_head",
    metadata,
    only_row(),
    Column("sequence", BigInteger, nullable=False),
    Column("digest", LargeBinary(32), nullable=False),
)

# A batch: requests that were queued together and are answered together. A finished batch is kept until `expires_at`.
batches = Table(
    "batches",
    metadata,
    Column("batch_id", String(36), primary_key=True),
    Column("account_id", String(32), nullable=False),
    Column("api_token_id", String(32), nullable=False),
    # The model's name as sent by the client, and the model that it referred to.
    Column("requested_model", String(256), nullable=False),
    Column("model", String(224), nullable=False),
    Column("num_requests", Integer, nullable=False),
    Column("num_done", Integer, nullable=False),
    # Number of the done requests whose result is an error.
    Column("num_failed", Integer, nullable=False, server_default="0"),
    Column("created_at", UtcDateTime, nullable=False),
    Column("started_at", UtcDateTime, nullable=True),
    Column("finished_at", UtcDateTime, nullable=True),
    Column("expires_at", UtcDateTime, nullable=True),
    # run: bodies of `ai/run`; response: one body of `responses`, in the background.
    Column("kind", String(16), nullable=False, server_default="run"),
    # When the client requested cancellation before the end; the chunk's owner then ends the calls.
    Column("cancelled_at", UtcDateTime, nullable=True),
    Index(None, "expires_at"),
    Index(None, "account_id", "batch_id"),
)

# Requests of a batch that one worker leases at a time, starting with number `first`, encrypted for their account.
batch_chunks = Table(
    "batch_chunks",
    metadata,
    Column("batch_id", ForeignKey(batches.c.batch_id), primary_key=True),
    Column("first", Integer, primary_key=True, autoincrement=False),
    Column("account_id", String(32), nullable=False),
    Column("num_requests", Integer, nullable=False),
    Column("num_done", Integer, nullable=False),
    # Estimated tokens, charged to the account's fair share.
    Column("cost", BigInteger, nullable=False),
    # When the chunk may be leased: the end of its owner's lease or of a pause; null when it is finished.
    Column("free_at", UtcDateTime, nullable=True),
    Column("owner", String(36), nullable=True),
    # Number of expired leases.
    Column("num_losses", Integer, nullable=False),
    # Null when the chunk is finished.
    Column("requests", LargeBinary, nullable=True),
    Index(None, "free_at"),
    Index(None, "account_id", "free_at"),
)

# The result of one request of a batch, encrypted for its account.
batch_results = Table(
    "batch_results",
    metadata,
    Column("batch_id", ForeignKey(batches.c.batch_id), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("completion_tokens", BigInteger, nullable=False),
    Column("answer", LargeBinary, nullable=False),
)

# Webhook of a batch, encrypted for its account; deleted with the batch. Any gateway may attempt delivery from `next_at`
# on; null after the delivery or the last attempt.
batch_webhooks = Table(
    "batch_webhooks",
    metadata,
    Column("batch_id", ForeignKey(batches.c.batch_id), primary_key=True),
    Column("target", LargeBinary, nullable=False),
    Column("num_tries", Integer, nullable=False),
    Column("next_at", UtcDateTime, nullable=True),
    # The result of the last attempt, such as `delivered` or `refused`, and its time; null before the first.
    Column("outcome", String(32), nullable=True),
    Column("tried_at", UtcDateTime, nullable=True),
    Index(None, "next_at"),
)

# Webhook signing keys of an account, each derived from its id and a secret that is stored nowhere. A replaced key keeps
# signing until `expires_at`.
webhook_keys = Table(
    "webhook_keys",
    metadata,
    Column("key_id", String(36), primary_key=True),
    Column("account_id", String(32), nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("expires_at", UtcDateTime, nullable=True),
    Index(None, "account_id"),
)

# A stored response, encrypted for its account: the response and the conversation up to it. The content of a background
# response is added when it is finished.
responses = Table(
    "responses",
    metadata,
    Column("response_id", String(37), primary_key=True),
    Column("account_id", String(32), nullable=False),
    Column("expires_at", UtcDateTime, nullable=False),
    Column("record", LargeBinary, nullable=False),
    Column("turns", LargeBinary, nullable=True),
    Index(None, "expires_at"),
)

# Tokens of each account's batches that have been leased: the account with the fewest is next.
batch_shares = Table(
    "batch_shares",
    metadata,
    Column("account_id", String(32), primary_key=True),
    Column("taken", BigInteger, nullable=False),
)

# A request with an idempotency key, by a hash of the key; its response is encrypted for its account.
idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    Column("account_id", String(32), primary_key=True),
    Column("key_hash", String(64), primary_key=True),
    # A keyed hash of the request.
    Column("fingerprint", String(64), nullable=False),
    Column("request_id", String(64), nullable=False),
    # The owner of the request and the end of its lease; null when it has a response.
    Column("owner", String(36), nullable=True),
    Column("leased_until", UtcDateTime, nullable=True),
    Column("answer", LargeBinary, nullable=True),
    Column("expires_at", UtcDateTime, nullable=False),
    Index(None, "expires_at"),
)
