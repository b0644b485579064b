"""The initial schema: every table of the tenants and of the catalog, and the triggers that protect the audit log.

The columns repeat `tables.py` on purpose: a migration must keep creating the schema of its version when `tables.py`
changes later, so that the migrations after it find the columns that they alter. A test compares both.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

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


_time = sa.DateTime(timezone=True)


def _text(name: str, length: int, **options: object) -> sa.Column[str]:
    return sa.Column(name, sa.String(length), **({"nullable": False} | options))  # type: ignore[arg-type]


def _keys(**lengths: int) -> list[sa.Column[str]]:
    return [sa.Column(name, sa.String(length), primary_key=True) for name, length in lengths.items()]


def _texts(**lengths: int) -> list[sa.Column[str]]:
    return [_text(name, length) for name, length in lengths.items()]


def _numbers(*names: str, default: str | None = None) -> list[sa.Column[int]]:
    return [sa.Column(name, sa.BigInteger(), nullable=False, server_default=default) for name in names]


def _integers(*names: str) -> list[sa.Column[int]]:
    return [sa.Column(name, sa.Integer(), nullable=False) for name in names]


def _optional(type_: sa.types.TypeEngine[object], *names: str) -> list[sa.Column[object]]:
    return [sa.Column(name, type_, nullable=True) for name in names]


def _index(table: str, *names: str, unique: bool = False) -> None:
    op.create_index(op.f(f"ix_{table}_{'_'.join(names)}"), table, list(names), unique=unique)


def _single_row(name: str, *columns: sa.Column[int] | sa.Column[bytes], **values: object) -> None:
    """Create a table with one row, whose id is 1."""
    table = op.create_table(name, sa.Column("id", sa.Integer(), primary_key=True, autoincrement=False), *columns)
    op.bulk_insert(table, [{"id": 1, **values}])


def upgrade() -> None:
    _create_accounts()
    _create_api_tokens()
    _create_usage()
    _create_budgets()
    _create_audit()
    _create_batches()
    _create_responses()
    _create_catalog()


def _create_accounts() -> None:
    op.create_table(
        "accounts",
        *_keys(account_id=32),
        *_texts(name=256),
        _text("status", 16, server_default="active"),
        _text("plan", 32, server_default="paid"),
        sa.Column("created_at", _time, nullable=False),
        *_numbers("decision_epoch", default="0"),
        *_optional(sa.Text(), "settings", "region"),
        _text("retention", 16, server_default="standard"),
        sa.Column("limits", sa.Text(), nullable=False, server_default=""),
        *_optional(_time, "deleted_at"),
        sa.CheckConstraint("status IN ('active', 'blocked')", name="status"),
    )
    _index("accounts", "decision_epoch")
    op.create_table(
        "users",
        *_keys(user_id=32),
        _text("email", 254, unique=True),
        *_texts(name=256),
        *_optional(sa.LargeBinary(32), "global_key_digest"),
        sa.Column("created_at", _time, nullable=False),
        *_numbers("decision_epoch", default="0"),
        *_optional(sa.Text(), "profile"),
    )
    _index("users", "decision_epoch")
    op.create_table(
        "memberships",
        sa.Column("user_id", sa.String(32), sa.ForeignKey("users.user_id"), primary_key=True),
        sa.Column("account_id", sa.String(32), sa.ForeignKey("accounts.account_id"), primary_key=True),
        sa.Column("created_at", _time, nullable=False),
        _text("role", 16, server_default="administrator"),
    )
    _index("memberships", "account_id")


def _create_api_tokens() -> None:
    op.create_table(
        "api_tokens",
        *_keys(api_token_id=32),
        sa.Column("account_id", sa.String(32), sa.ForeignKey("accounts.account_id"), nullable=False),
        *_texts(name=256, kind=16),
        _text("status", 16, server_default="active"),
        _text("lookup_id", 10, unique=True),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("created_at", _time, nullable=False),
        *_optional(_time, "expires_at", "revoked_at", "not_before", "modified_at", "last_used_at"),
        *_numbers("decision_epoch", default="0"),
        *_optional(sa.String(32), "user_id"),
        sa.Column("policies", sa.Text(), nullable=False),
        *_optional(sa.Text(), "condition", "region", "models"),
        sa.Column("limits", sa.Text(), nullable=False, server_default=""),
        sa.CheckConstraint("kind IN ('user', 'account')", name="kind"),
        sa.CheckConstraint("status IN ('active', 'disabled', 'revoked')", name="status"),
    )
    for name in ("account_id", "decision_epoch", "user_id"):
        _index("api_tokens", name)
    _single_row("api_token_epoch", *_numbers("epoch"), epoch=0)


def _create_usage() -> None:
    op.create_table(
        "usage_entries",
        *_keys(request_id=64),
        *_texts(account_id=32, api_token_id=32, model=256, revision=64, task=64, pop=64, node_id=128, status=32),
        *_numbers("prompt_tokens", "cached_tokens", "completion_tokens"),
        sa.Column("started_at", _time, nullable=False),
        *_optional(sa.Float(), "ttft_ms"),
        sa.Column("duration_ms", sa.Float(), nullable=False),
        *_integers("attempts"),
        *_numbers("micro_neurons"),
        sa.Column("is_stream", sa.Boolean(), nullable=False),
        *_numbers("device_us", "bytes_in", "bytes_out", "num_tool_calls", default="0"),
        *_numbers("num_steps", "audio_ms", "num_image_tiles", "num_retried", default="0"),
        sa.Column("is_useful", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("is_batch", sa.Boolean(), nullable=False, server_default=sa.false()),
    )
    _index("usage_entries", "account_id", "started_at")
    op.create_table(
        "usage_sums",
        *_keys(account_id=32),
        sa.Column("starts_at", _time, primary_key=True),
        *_keys(period=8, model=256, api_token_id=32, task=64, pop=64, status=32),
        *_numbers("num_calls", "num_useful", "prompt_tokens", "cached_tokens", "completion_tokens", "micro_neurons"),
        *_numbers("device_us", "bytes_in", "bytes_out", "num_tool_calls", "num_attempts"),
    )
    _index("usage_sums", "period", "starts_at")
    op.create_table(
        "usage_spools",
        *_keys(spool_id=36),
        *_numbers("segment", "offset"),
        sa.Column("moved_at", _time, nullable=False),
    )


def _create_budgets() -> None:
    op.create_table(
        "budgets",
        *_keys(account_id=32, api_token_id=32, unit=8),
        *_numbers("micro_amount"),
        sa.Column("refuses", sa.Boolean(), nullable=False),
        *_texts(alert_percents=64),
        sa.Column("modified_at", _time, nullable=False),
        sa.CheckConstraint("unit IN ('neurons', 'usd')", name="unit"),
    )
    op.create_table(
        "budget_alerts",
        *_keys(alert_id=128),
        *_texts(account_id=32, api_token_id=32, unit=8, month=7),
        *_integers("percent"),
        *_numbers("micro_amount", "micro_used"),
        sa.Column("at", _time, nullable=False),
    )
    _index("budget_alerts", "account_id", "at")


def _create_audit() -> None:
    op.create_table(
        "audit_entries",
        *_keys(audit_id=36),
        sa.Column("at", _time, nullable=False),
        *_texts(actor=128, action=64, account_id=32, subject_id=64),
        sa.Column("detail", sa.Text(), nullable=False, server_default=""),
        *_numbers("sequence"),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
    )
    _index("audit_entries", "account_id", "at")
    _index("audit_entries", "sequence", unique=True)
    digest = sa.Column("digest", sa.LargeBinary(32), nullable=False)
    _single_row("audit_head", *_numbers("sequence"), digest, sequence=0, digest=bytes(32))
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    for statement in _SQLITE_TRIGGERS if is_sqlite else _POSTGRES_TRIGGERS:
        op.execute(statement)


def _create_batches() -> None:
    op.create_table(
        "batches",
        *_keys(batch_id=36),
        *_texts(account_id=32, api_token_id=32, requested_model=256, model=224),
        *_integers("num_requests", "num_done"),
        sa.Column("created_at", _time, nullable=False),
        *_optional(_time, "started_at", "finished_at", "expires_at", "cancelled_at"),
        _text("kind", 16, server_default="run"),
    )
    _index("batches", "expires_at")
    op.create_table(
        "batch_chunks",
        sa.Column("batch_id", sa.String(36), sa.ForeignKey("batches.batch_id"), primary_key=True),
        sa.Column("first", sa.Integer(), primary_key=True, autoincrement=False),
        *_texts(account_id=32),
        *_integers("num_requests", "num_done", "num_losses"),
        *_numbers("cost"),
        *_optional(_time, "free_at"),
        *_optional(sa.String(36), "owner"),
        *_optional(sa.LargeBinary(), "requests"),
    )
    _index("batch_chunks", "account_id", "free_at")
    _index("batch_chunks", "free_at")
    op.create_table(
        "batch_results",
        sa.Column("batch_id", sa.String(36), sa.ForeignKey("batches.batch_id"), primary_key=True),
        sa.Column("number", sa.Integer(), primary_key=True, autoincrement=False),
        *_numbers("prompt_tokens", "completion_tokens"),
        sa.Column("answer", sa.LargeBinary(), nullable=False),
    )
    op.create_table("batch_shares", *_keys(account_id=32), *_numbers("taken"))
    op.create_table(
        "batch_webhooks",
        sa.Column("batch_id", sa.String(36), sa.ForeignKey("batches.batch_id"), primary_key=True),
        sa.Column("target", sa.LargeBinary(), nullable=False),
        *_integers("num_tries"),
        sa.Column("next_at", _time, nullable=False),
    )
    _index("batch_webhooks", "next_at")


def _create_responses() -> None:
    op.create_table(
        "webhook_keys",
        *_keys(key_id=36),
        *_texts(account_id=32),
        sa.Column("created_at", _time, nullable=False),
        *_optional(_time, "expires_at"),
    )
    _index("webhook_keys", "account_id")
    op.create_table(
        "responses",
        *_keys(response_id=37),
        *_texts(account_id=32),
        sa.Column("expires_at", _time, nullable=False),
        sa.Column("record", sa.LargeBinary(), nullable=False),
        *_optional(sa.LargeBinary(), "turns"),
    )
    _index("responses", "expires_at")
    op.create_table(
        "idempotency_keys",
        *_keys(account_id=32, key_hash=64),
        *_texts(fingerprint=64, request_id=64),
        *_optional(sa.String(36), "owner"),
        *_optional(_time, "leased_until"),
        *_optional(sa.LargeBinary(), "answer"),
        sa.Column("expires_at", _time, nullable=False),
    )
    _index("idempotency_keys", "expires_at")


def _create_catalog() -> None:
    op.create_table(
        "published_models",
        *_keys(name=224),
        *_texts(revision=64),
        sa.Column("card", sa.Text(), nullable=False),
        sa.Column("published_at", _time, nullable=False),
    )
    op.create_table(
        "model_aliases", *_keys(name=224), *_texts(target=224), sa.Column("created_at", _time, nullable=False)
    )
    _single_row("catalog_revision", *_numbers("number"), number=0)
    op.create_table(
        "finetunes",
        *_keys(finetune_id=36),
        *_texts(account_id=32, name=128, model=224),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("is_public", sa.Boolean(), nullable=False),
        sa.Column("created_at", _time, nullable=False),
        sa.Column("modified_at", _time, nullable=False),
        *_optional(sa.String(64), "config_sha256", "weights_sha256", "revision"),
        *_optional(sa.BigInteger(), "config_bytes", "weights_bytes"),
        sa.UniqueConstraint("account_id", "name"),
    )
    _index("finetunes", "name")
