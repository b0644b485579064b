"""The initial schema: every table of the tenants and of the catalog, and the triggers that protect the audit log."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_time = sa.DateTime(timezone=True)
_REFUSAL = "audit entries are append-only"
_SQLITE_TRIGGERS = (
    f"""CREATE TRIGGER audit_entries_no_update BEFORE UPDATE ON audit_entries
    BEGIN SELECT RAISE(ABORT, '{_REFUSAL}'); END""",
    f"""CREATE TRIGGER audit_entries_no_delete BEFORE DELETE ON audit_entries
    BEGIN SELECT RAISE(ABORT, '{_REFUSAL}'); END""",
)
_POSTGRES_TRIGGERS = (
    f"""CREATE FUNCTION audit_entries_refuse() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION '{_REFUSAL}' USING ERRCODE = 'integrity_constraint_violation'; END $$""",
    """CREATE TRIGGER audit_entries_no_change BEFORE UPDATE OR DELETE ON audit_entries FOR EACH ROW
    EXECUTE FUNCTION audit_entries_refuse()""",
    """CREATE TRIGGER audit_entries_no_truncate BEFORE TRUNCATE ON audit_entries FOR EACH STATEMENT
    EXECUTE FUNCTION audit_entries_refuse()""",
)


def upgrade() -> None:
    _create_accounts()
    _create_usage()
    _create_audit()
    _create_jobs()
    _create_catalog()


def _create_accounts() -> None:
    op.create_table(
        "accounts",
        sa.Column("account_id", sa.String(32), primary_key=True),
        sa.Column("name", sa.String(256), nullable=False),
        sa.Column("status", sa.String(16), nullable=False, server_default="active"),
        sa.Column("plan", sa.String(32), nullable=False, server_default="paid"),
        sa.Column("created_at", _time, nullable=False),
        sa.Column("decision_epoch", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("settings", sa.Text(), nullable=True),
        sa.Column("region", sa.Text(), nullable=True),
        sa.Column("retention", sa.String(16), nullable=False, server_default="standard"),
        sa.Column("limits", sa.Text(), nullable=False, server_default=""),
        sa.Column("deleted_at", _time, nullable=True),
        sa.CheckConstraint("status IN ('active', 'blocked')", name="status"),
    )
    op.create_index(op.f("ix_accounts_decision_epoch"), "accounts", ["decision_epoch"])
    op.create_table(
        "users",
        sa.Column("user_id", sa.String(32), primary_key=True),
        sa.Column("email", sa.String(254), nullable=False, unique=True),
        sa.Column("name", sa.String(256), nullable=False),
        sa.Column("global_key_digest", sa.LargeBinary(32), nullable=True),
        sa.Column("created_at", _time, nullable=False),
        sa.Column("decision_epoch", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("profile", sa.Text(), nullable=True),
    )
    op.create_index(op.f("ix_users_decision_epoch"), "users", ["decision_epoch"])
    op.create_table(
        "memberships",
        sa.Column("user_id", sa.String(32), sa.ForeignKey("users.user_id"), primary_key=True),
        sa.Column("account_id", sa.String(32), sa.ForeignKey("accounts.account_id"), primary_key=True),
        sa.Column("created_at", _time, nullable=False),
        sa.Column("role", sa.String(16), nullable=False, server_default="administrator"),
    )
    op.create_index(op.f("ix_memberships_account_id"), "memberships", ["account_id"])
    op.create_table(
        "api_tokens",
        sa.Column("api_token_id", sa.String(32), primary_key=True),
        sa.Column("account_id", sa.String(32), sa.ForeignKey("accounts.account_id"), nullable=False),
        sa.Column("name", sa.String(256), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("status", sa.String(16), nullable=False, server_default="active"),
        sa.Column("lookup_id", sa.String(10), nullable=False, unique=True),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("created_at", _time, nullable=False),
        sa.Column("expires_at", _time, nullable=True),
        sa.Column("revoked_at", _time, nullable=True),
        sa.Column("decision_epoch", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("user_id", sa.String(32), nullable=True),
        sa.Column("policies", sa.Text(), nullable=False),
        sa.Column("condition", sa.Text(), nullable=True),
        sa.Column("not_before", _time, nullable=True),
        sa.Column("modified_at", _time, nullable=True),
        sa.Column("region", sa.Text(), nullable=True),
        sa.Column("limits", sa.Text(), nullable=False, server_default=""),
        sa.Column("models", sa.Text(), nullable=True),
        sa.Column("last_used_at", _time, nullable=True),
        sa.CheckConstraint("kind IN ('user', 'account')", name="kind"),
        sa.CheckConstraint("status IN ('active', 'disabled', 'revoked')", name="status"),
    )
    op.create_index(op.f("ix_api_tokens_account_id"), "api_tokens", ["account_id"])
    op.create_index(op.f("ix_api_tokens_decision_epoch"), "api_tokens", ["decision_epoch"])
    op.create_index(op.f("ix_api_tokens_user_id"), "api_tokens", ["user_id"])
    api_token_epoch = op.create_table(
        "api_token_epoch",
        sa.Column("id", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
    )
    op.bulk_insert(api_token_epoch, [{"id": 1, "epoch": 0}])


def _create_usage() -> None:
    op.create_table(
        "usage_entries",
        sa.Column("request_id", sa.String(64), primary_key=True),
        sa.Column("account_id", sa.String(32), nullable=False),
        sa.Column("api_token_id", sa.String(32), nullable=False),
        sa.Column("model", sa.String(256), nullable=False),
        sa.Column("revision", sa.String(64), nullable=False),
        sa.Column("task", sa.String(64), nullable=False),
        sa.Column("pop", sa.String(64), nullable=False),
        sa.Column("node_id", sa.String(128), nullable=False),
        sa.Column("status", sa.String(32), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=False),
        sa.Column("completion_tokens", sa.BigInteger(), nullable=False),
        sa.Column("started_at", _time, nullable=False),
        sa.Column("ttft_ms", sa.Float(), nullable=True),
        sa.Column("duration_ms", sa.Float(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("micro_neurons", sa.BigInteger(), nullable=False),
        sa.Column("is_stream", sa.Boolean(), nullable=False),
        sa.Column("device_us", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("bytes_in", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("bytes_out", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("num_tool_calls", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("num_steps", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("audio_ms", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("num_image_tiles", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("num_retried", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("is_useful", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("is_batch", sa.Boolean(), nullable=False, server_default=sa.false()),
    )
    op.create_index(op.f("ix_usage_entries_account_id_started_at"), "usage_entries", ["account_id", "started_at"])
    op.create_table(
        "usage_sums",
        sa.Column("account_id", sa.String(32), primary_key=True),
        sa.Column("starts_at", _time, primary_key=True),
        sa.Column("period", sa.String(8), primary_key=True),
        sa.Column("model", sa.String(256), primary_key=True),
        sa.Column("api_token_id", sa.String(32), primary_key=True),
        sa.Column("task", sa.String(64), primary_key=True),
        sa.Column("pop", sa.String(64), primary_key=True),
        sa.Column("status", sa.String(32), primary_key=True),
        sa.Column("num_calls", sa.BigInteger(), nullable=False),
        sa.Column("num_useful", sa.BigInteger(), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=False),
        sa.Column("completion_tokens", sa.BigInteger(), nullable=False),
        sa.Column("micro_neurons", sa.BigInteger(), nullable=False),
        sa.Column("device_us", sa.BigInteger(), nullable=False),
        sa.Column("bytes_in", sa.BigInteger(), nullable=False),
        sa.Column("bytes_out", sa.BigInteger(), nullable=False),
        sa.Column("num_tool_calls", sa.BigInteger(), nullable=False),
        sa.Column("num_attempts", sa.BigInteger(), nullable=False),
    )
    op.create_index(op.f("ix_usage_sums_period_starts_at"), "usage_sums", ["period", "starts_at"])
    op.create_table(
        "usage_spools",
        sa.Column("spool_id", sa.String(36), primary_key=True),
        sa.Column("segment", sa.BigInteger(), nullable=False),
        sa.Column("offset", sa.BigInteger(), nullable=False),
        sa.Column("moved_at", _time, nullable=False),
    )
    op.create_table(
        "budgets",
        sa.Column("account_id", sa.String(32), primary_key=True),
        sa.Column("api_token_id", sa.String(32), primary_key=True),
        sa.Column("unit", sa.String(8), primary_key=True),
        sa.Column("micro_amount", sa.BigInteger(), nullable=False),
        sa.Column("refuses", sa.Boolean(), nullable=False),
        sa.Column("alert_percents", sa.String(64), nullable=False),
        sa.Column("modified_at", _time, nullable=False),
        sa.CheckConstraint("unit IN ('neurons', 'usd')", name="unit"),
    )
    op.create_table(
        "budget_alerts",
        sa.Column("alert_id", sa.String(128), primary_key=True),
        sa.Column("account_id", sa.String(32), nullable=False),
        sa.Column("api_token_id", sa.String(32), nullable=False),
        sa.Column("unit", sa.String(8), nullable=False),
        sa.Column("month", sa.String(7), nullable=False),
        sa.Column("percent", sa.Integer(), nullable=False),
        sa.Column("micro_amount", sa.BigInteger(), nullable=False),
        sa.Column("micro_used", sa.BigInteger(), nullable=False),
        sa.Column("at", _time, nullable=False),
    )
    op.create_index(op.f("ix_budget_alerts_account_id_at"), "budget_alerts", ["account_id", "at"])


def _create_audit() -> None:
    op.create_table(
        "audit_entries",
        sa.Column("audit_id", sa.String(36), primary_key=True),
        sa.Column("at", _time, nullable=False),
        sa.Column("actor", sa.String(128), nullable=False),
        sa.Column("action", sa.String(64), nullable=False),
        sa.Column("account_id", sa.String(32), nullable=False),
        sa.Column("subject_id", sa.String(64), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False, server_default=""),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
    )
    op.create_index(op.f("ix_audit_entries_account_id_at"), "audit_entries", ["account_id", "at"])
    op.create_index(op.f("ix_audit_entries_sequence"), "audit_entries", ["sequence"], unique=True)
    audit_head = op.create_table(
        "audit_head",
        sa.Column("id", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
    )
    op.bulk_insert(audit_head, [{"id": 1, "sequence": 0, "digest": bytes(32)}])
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    for statement in _SQLITE_TRIGGERS if is_sqlite else _POSTGRES_TRIGGERS:
        op.execute(statement)


def _create_jobs() -> None:
    op.create_table(
        "batches",
        sa.Column("batch_id", sa.String(36), primary_key=True),
        sa.Column("account_id", sa.String(32), nullable=False),
        sa.Column("api_token_id", sa.String(32), nullable=False),
        sa.Column("requested_model", sa.String(256), nullable=False),
        sa.Column("model", sa.String(224), nullable=False),
        sa.Column("num_requests", sa.Integer(), nullable=False),
        sa.Column("num_done", sa.Integer(), nullable=False),
        sa.Column("created_at", _time, nullable=False),
        sa.Column("started_at", _time, nullable=True),
        sa.Column("finished_at", _time, nullable=True),
        sa.Column("expires_at", _time, nullable=True),
        sa.Column("kind", sa.String(16), nullable=False, server_default="run"),
        sa.Column("cancelled_at", _time, nullable=True),
    )
    op.create_index(op.f("ix_batches_expires_at"), "batches", ["expires_at"])
    op.create_table(
        "batch_chunks",
        sa.Column("batch_id", sa.String(36), sa.ForeignKey("batches.batch_id"), primary_key=True),
        sa.Column("first", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("account_id", sa.String(32), nullable=False),
        sa.Column("num_requests", sa.Integer(), nullable=False),
        sa.Column("num_done", sa.Integer(), nullable=False),
        sa.Column("cost", sa.BigInteger(), nullable=False),
        sa.Column("free_at", _time, nullable=True),
        sa.Column("owner", sa.String(36), nullable=True),
        sa.Column("num_losses", sa.Integer(), nullable=False),
        sa.Column("requests", sa.LargeBinary(), nullable=True),
    )
    op.create_index(op.f("ix_batch_chunks_account_id_free_at"), "batch_chunks", ["account_id", "free_at"])
    op.create_index(op.f("ix_batch_chunks_free_at"), "batch_chunks", ["free_at"])
    op.create_table(
        "batch_results",
        sa.Column("batch_id", sa.String(36), sa.ForeignKey("batches.batch_id"), primary_key=True),
        sa.Column("number", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("completion_tokens", sa.BigInteger(), nullable=False),
        sa.Column("answer", sa.LargeBinary(), nullable=False),
    )
    op.create_table(
        "batch_webhooks",
        sa.Column("batch_id", sa.String(36), sa.ForeignKey("batches.batch_id"), primary_key=True),
        sa.Column("target", sa.LargeBinary(), nullable=False),
        sa.Column("num_tries", sa.Integer(), nullable=False),
        sa.Column("next_at", _time, nullable=False),
    )
    op.create_index(op.f("ix_batch_webhooks_next_at"), "batch_webhooks", ["next_at"])
    op.create_table(
        "batch_shares",
        sa.Column("account_id", sa.String(32), primary_key=True),
        sa.Column("taken", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "webhook_keys",
        sa.Column("key_id", sa.String(36), primary_key=True),
        sa.Column("account_id", sa.String(32), nullable=False),
        sa.Column("created_at", _time, nullable=False),
        sa.Column("expires_at", _time, nullable=True),
    )
    op.create_index(op.f("ix_webhook_keys_account_id"), "webhook_keys", ["account_id"])
    op.create_table(
        "responses",
        sa.Column("response_id", sa.String(37), primary_key=True),
        sa.Column("account_id", sa.String(32), nullable=False),
        sa.Column("expires_at", _time, nullable=False),
        sa.Column("record", sa.LargeBinary(), nullable=False),
        sa.Column("turns", sa.LargeBinary(), nullable=True),
    )
    op.create_index(op.f("ix_responses_expires_at"), "responses", ["expires_at"])
    op.create_table(
        "idempotency_keys",
        sa.Column("account_id", sa.String(32), primary_key=True),
        sa.Column("key_hash", sa.String(64), primary_key=True),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("request_id", sa.String(64), nullable=False),
        sa.Column("owner", sa.String(36), nullable=True),
        sa.Column("leased_until", _time, nullable=True),
        sa.Column("answer", sa.LargeBinary(), nullable=True),
        sa.Column("expires_at", _time, nullable=False),
    )
    op.create_index(op.f("ix_idempotency_keys_expires_at"), "idempotency_keys", ["expires_at"])


def _create_catalog() -> None:
    op.create_table(
        "published_models",
        sa.Column("name", sa.String(224), primary_key=True),
        sa.Column("revision", sa.String(64), nullable=False),
        sa.Column("card", sa.Text(), nullable=False),
        sa.Column("published_at", _time, nullable=False),
    )
    op.create_table(
        "model_aliases",
        sa.Column("name", sa.String(224), primary_key=True),
        sa.Column("target", sa.String(224), nullable=False),
        sa.Column("created_at", _time, nullable=False),
    )
    catalog_revision = op.create_table(
        "catalog_revision",
        sa.Column("id", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
    )
    op.bulk_insert(catalog_revision, [{"id": 1, "number": 0}])
    op.create_table(
        "finetunes",
        sa.Column("finetune_id", sa.String(36), primary_key=True),
        sa.Column("account_id", sa.String(32), nullable=False),
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("model", sa.String(224), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("is_public", sa.Boolean(), nullable=False),
        sa.Column("created_at", _time, nullable=False),
        sa.Column("modified_at", _time, nullable=False),
        sa.Column("config_sha256", sa.String(64), nullable=True),
        sa.Column("config_bytes", sa.BigInteger(), nullable=True),
        sa.Column("weights_sha256", sa.String(64), nullable=True),
        sa.Column("weights_bytes", sa.BigInteger(), nullable=True),
        sa.Column("revision", sa.String(64), nullable=True),
        sa.UniqueConstraint("account_id", "name"),
    )
    op.create_index(op.f("ix_finetunes_name"), "finetunes", ["name"])
