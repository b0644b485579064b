"""The tenants' rows: accounts, users and their memberships, API tokens and the epoch of decisions, usage and sums over
it, budgets, audit, batches and their webhooks, responses, and requests under idempotency keys.

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
    false,
)

from storage.columns import only_row
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
    # JSON of tenants.residency.RegionRule: where the account's calls may run; null is anywhere.
    Column("region", Text, nullable=True),
    # What may be kept of its calls' content: `standard`, or `zero` for nothing (tenants.residency.RETENTION_RULES).
    Column("retention", String(16), nullable=False, server_default="standard"),
    # Rules of tenants.quota.limits that hold for this account in place of the operator's.
    Column("limits", Text, nullable=False, server_default=""),
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
    # JSON of tenants.users.Profile: what the user says beside the name; null is nothing.
    Column("profile", Text, nullable=True),
    Index(None, "decision_epoch"),
)

memberships = Table(
    "memberships",
    metadata,
    Column("user_id", ForeignKey(users.c.user_id), primary_key=True),
    Column("account_id", ForeignKey(accounts.c.account_id), primary_key=True, index=True),
    Column("created_at", UtcDateTime, nullable=False),
    # One of tenants.credentials.roles: what the member may do there at most.
    Column("role", String(16), nullable=False, server_default="administrator"),
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
    Column("created_at", UtcDateTime, nullable=False),
    Column("expires_at", UtcDateTime, nullable=True),
    Column("revoked_at", UtcDateTime, nullable=True),
    Column("decision_epoch", BigInteger, nullable=False, server_default="0"),
    # Whose user token this is; null for the account's own.
    Column("user_id", String(32), nullable=True),
    # JSON list of tenants.credentials.policies.Policy; scopes are derived from it when the token is verified.
    Column("policies", Text, nullable=False),
    # JSON of tenants.credentials.conditions.AddressCondition; null: from anywhere.
    Column("condition", Text, nullable=True),
    Column("not_before", UtcDateTime, nullable=True),
    Column("modified_at", UtcDateTime, nullable=True),
    # JSON of tenants.residency.RegionRule, beside the account's; null adds nothing to that.
    Column("region", Text, nullable=True),
    # Rules of tenants.quota.limits that hold for this token in place of the operator's and the account's.
    Column("limits", Text, nullable=False, server_default=""),
    # JSON of a list of model ids, the only ones that it may run; null is all.
    Column("models", Text, nullable=True),
    # To half a minute or so, as gateways note it; null is never, or not since this is noted.
    Column("last_used_at", UtcDateTime, nullable=True),
    Index(None, "user_id"),
    CheckConstraint("kind IN ('user', 'account')", name="kind"),
    CheckConstraint("status IN ('active', 'disabled', 'revoked')", name="status"),
    Index(None, "decision_epoch"),
)

# Raised by every change that a verifier must hear of: polled, so it must stay one small read.
api_token_epoch = Table(
    "api_token_epoch",
    metadata,
    only_row(),
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
    # Microseconds of its device that the call is answerable for, and bytes of the request's body and of the answer's.
    Column("device_us", BigInteger, nullable=False, server_default="0"),
    Column("bytes_in", BigInteger, nullable=False, server_default="0"),
    Column("bytes_out", BigInteger, nullable=False, server_default="0"),
    Column("num_tool_calls", BigInteger, nullable=False, server_default="0"),
    # What tasks beside text are priced by.
    Column("num_steps", BigInteger, nullable=False, server_default="0"),
    Column("audio_ms", BigInteger, nullable=False, server_default="0"),
    Column("num_image_tiles", BigInteger, nullable=False, server_default="0"),
    # Replies counted as useful before, which this call's client asked for again: 0 or 1.
    Column("num_retried", BigInteger, nullable=False, server_default="0"),
    Column("is_useful", Boolean, nullable=False, server_default=false()),
    Column("is_batch", Boolean, nullable=False, server_default=false()),
    Index(None, "account_id", "started_at"),
)

# Sums over entries, kept with them in one transaction. A call is counted in exactly one row: that of its minute, until
# the minute's row is folded into its hour's, and that into its day's. Money is never summed from anything else once
# the entries themselves have been let go.
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
    Column("num_calls", BigInteger, nullable=False),
    Column("num_useful", BigInteger, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("completion_tokens", BigInteger, nullable=False),
    Column("micro_neurons", BigInteger, nullable=False),
    Column("device_us", BigInteger, nullable=False),
    Column("bytes_in", BigInteger, nullable=False),
    Column("bytes_out", BigInteger, nullable=False),
    Column("num_tool_calls", BigInteger, nullable=False),
    Column("num_attempts", BigInteger, nullable=False),
    Index(None, "period", "starts_at"),
)

# How far the ledger is in each gateway's spool, written with the entries themselves: a database that knows less than
# the spool does is an older copy, and is told again.
usage_spools = Table(
    "usage_spools",
    metadata,
    Column("spool_id", String(36), primary_key=True),
    Column("segment", BigInteger, nullable=False),
    Column("offset", BigInteger, nullable=False),
    Column("moved_at", UtcDateTime, nullable=False),
)

# What an account, or one API token of it ("" is the whole account), may use in a calendar month.
budgets = Table(
    "budgets",
    metadata,
    Column("account_id", String(32), primary_key=True),
    Column("api_token_id", String(32), primary_key=True),
    # neurons or usd
    Column("unit", String(8), primary_key=True),
    # Millionths of the unit.
    Column("micro_amount", BigInteger, nullable=False),
    # Whether calls beyond it are refused; else it only warns.
    Column("refuses", Boolean, nullable=False),
    # Comma separated, such as 50,80,100.
    Column("alert_percents", String(64), nullable=False),
    Column("modified_at", UtcDateTime, nullable=False),
    CheckConstraint("unit IN ('neurons', 'usd')", name="unit"),
)

# One row for each share of a budget that was passed, once a month; the id is made of what the row is about.
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
    Column("who", String(128), nullable=False),
    Column("action", String(64), nullable=False),
    Column("account_id", String(32), nullable=False),
    # The id of what was acted on: an account's, an API token's. Never a secret.
    Column("subject_id", String(64), nullable=False),
    # What changed, in few words; never a secret, never content.
    Column("detail", Text, nullable=False, server_default=""),
    # Position in the hash chain, from 1, and SHA-256 over the previous digest and all fields of the entry. Database
    # triggers reject every update and delete.
    Column("sequence", BigInteger, nullable=False),
    Column("digest", LargeBinary(32), nullable=False),
    Index(None, "account_id", "at"),
    Index(None, "sequence", unique=True),
)

# The newest entry's place and digest. Locked by whoever appends, so that entries stand in one line.
audit_head = Table(
    "audit_head",
    metadata,
    only_row(),
    Column("sequence", BigInteger, nullable=False),
    Column("digest", LargeBinary(32), nullable=False),
)

# A batch: requests that were queued together and are answered together. A finished one is kept until `expires_at`.
batches = Table(
    "batches",
    metadata,
    Column("batch_id", String(36), primary_key=True),
    Column("account_id", String(32), nullable=False),
    Column("api_token_id", String(32), nullable=False),
    # As the client named the model, and the one that it then meant.
    Column("requested_model", String(256), nullable=False),
    Column("model", String(224), nullable=False),
    Column("num_requests", Integer, nullable=False),
    Column("num_done", Integer, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("started_at", UtcDateTime, nullable=True),
    Column("finished_at", UtcDateTime, nullable=True),
    Column("expires_at", UtcDateTime, nullable=True),
    # run: bodies of `ai/run`; response: one body of `responses`, in the background.
    Column("kind", String(16), nullable=False, server_default="run"),
    # When its client asked for its end, before it was finished: whoever has it ends it.
    Column("cancelled_at", UtcDateTime, nullable=True),
    Index(None, "expires_at"),
)

# What one worker takes of a batch at a time: requests from the number `first` on, sealed for their account.
batch_chunks = Table(
    "batch_chunks",
    metadata,
    Column("batch_id", ForeignKey(batches.c.batch_id), primary_key=True),
    Column("first", Integer, primary_key=True, autoincrement=False),
    Column("account_id", String(32), nullable=False),
    Column("num_requests", Integer, nullable=False),
    Column("num_done", Integer, nullable=False),
    # Tokens, guessed: what the account's share is charged.
    Column("cost", BigInteger, nullable=False),
    # From when on anybody may take it: the end of its owner's lease, or of a pause; null once all of it is done.
    Column("free_at", UtcDateTime, nullable=True),
    Column("owner", String(36), nullable=True),
    # How often its owner was lost.
    Column("num_losses", Integer, nullable=False),
    # Null once all of it is done.
    Column("requests", LargeBinary, nullable=True),
    Index(None, "free_at"),
    Index(None, "account_id", "free_at"),
)

# One answer to a request of a batch, sealed for its account.
batch_results = Table(
    "batch_results",
    metadata,
    Column("batch_id", ForeignKey(batches.c.batch_id), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("completion_tokens", BigInteger, nullable=False),
    Column("answer", LargeBinary, nullable=False),
)

# Where a batch's answers are to be sent once it is finished, sealed for its account; gone when they were, or were given
# up. From `next_at` on any gateway may try.
batch_webhooks = Table(
    "batch_webhooks",
    metadata,
    Column("batch_id", ForeignKey(batches.c.batch_id), primary_key=True),
    Column("target", LargeBinary, nullable=False),
    Column("num_tries", Integer, nullable=False),
    Column("next_at", UtcDateTime, nullable=False),
    Index(None, "next_at"),
)

# The keys that an account's webhooks are signed with, each made from its id and a secret that no store holds. One that
# was replaced signs on, beside the newer one, until `expires_at`.
webhook_keys = Table(
    "webhook_keys",
    metadata,
    Column("key_id", String(36), primary_key=True),
    Column("account_id", String(32), nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("expires_at", UtcDateTime, nullable=True),
    Index(None, "account_id"),
)

# A response that may be told again and gone on from, sealed for its account: what it was, and all turns up to its own;
# those of one that runs in the background are not there until it is finished.
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

# How many tokens of each account's batches have been taken: the next chunk is of the account that is behind.
batch_shares = Table(
    "batch_shares",
    metadata,
    Column("account_id", String(32), primary_key=True),
    Column("taken", BigInteger, nullable=False),
)

# A request under an idempotency key, by a hash of that key; sealed for its account, what it was answered.
idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    Column("account_id", String(32), primary_key=True),
    Column("key_hash", String(64), primary_key=True),
    # A keyed hash of what the request asks.
    Column("fingerprint", String(64), nullable=False),
    Column("request_id", String(64), nullable=False),
    # Who works on it, and until when that is believed; null once it is answered.
    Column("owner", String(36), nullable=True),
    Column("leased_until", UtcDateTime, nullable=True),
    Column("answer", LargeBinary, nullable=True),
    Column("expires_at", UtcDateTime, nullable=False),
    Index(None, "expires_at"),
)
