"""Accounts, API tokens, usage and audit entries."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_time = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "accounts",
        sa.Column("account_id", sa.String(32), nullable=False),
        sa.Column("name", sa.String(256), nullable=False),
        sa.Column("status", sa.String(16), nullable=False, server_default="active"),
        sa.Column("plan", sa.String(32), nullable=False, server_default="standard"),
        sa.Column("created_at", _time, nullable=False),
        sa.Column("decision_epoch", sa.BigInteger(), nullable=False, server_default="0"),
        sa.CheckConstraint("status IN ('active', 'blocked')", name=op.f("ck_accounts_status")),
        sa.PrimaryKeyConstraint("account_id", name=op.f("pk_accounts")),
    )
    op.create_index(op.f("ix_accounts_decision_epoch"), "accounts", ["decision_epoch"])
    _create_api_tokens()
    epoch = op.create_table(
        "api_token_epoch",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_token_epoch")),
    )
    op.bulk_insert(epoch, [{"id": 1, "epoch": 0}])
    _create_usage_entries()
    op.create_table(
        "audit_entries",
        sa.Column("audit_id", sa.String(36), nullable=False),
        sa.Column("at", _time, nullable=False),
        sa.Column("who", sa.String(128), nullable=False),
        sa.Column("action", sa.String(64), nullable=False),
        sa.Column("account_id", sa.String(32), nullable=False),
        sa.Column("subject_id", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("audit_id", name=op.f("pk_audit_entries")),
    )
    op.create_index(op.f("ix_audit_entries_account_id_at"), "audit_entries", ["account_id", "at"])


def downgrade() -> None:
    for table in ("audit_entries", "usage_entries", "api_token_epoch", "api_tokens", "accounts"):
        op.drop_table(table)


def _create_api_tokens() -> None:
    op.create_table(
        "api_tokens",
        sa.Column("api_token_id", sa.String(32), nullable=False),
        sa.Column("account_id", sa.String(32), nullable=False),
        sa.Column("name", sa.String(256), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("status", sa.String(16), nullable=False, server_default="active"),
        sa.Column("lookup_id", sa.String(10), nullable=False),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("permission_groups", sa.Text(), nullable=False),
        sa.Column("created_at", _time, nullable=False),
        sa.Column("expires_at", _time, nullable=True),
        sa.Column("revoked_at", _time, nullable=True),
        sa.Column("decision_epoch", sa.BigInteger(), nullable=False, server_default="0"),
        sa.CheckConstraint("kind IN ('user', 'account')", name=op.f("ck_api_tokens_kind")),
        sa.CheckConstraint("status IN ('active', 'disabled', 'revoked')", name=op.f("ck_api_tokens_status")),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.account_id"], name=op.f("fk_api_tokens_account_id_accounts")
        ),
        sa.PrimaryKeyConstraint("api_token_id", name=op.f("pk_api_tokens")),
        sa.UniqueConstraint("lookup_id", name=op.f("uq_api_tokens_lookup_id")),
    )
    op.create_index(op.f("ix_api_tokens_account_id"), "api_tokens", ["account_id"])
    op.create_index(op.f("ix_api_tokens_decision_epoch"), "api_tokens", ["decision_epoch"])


def _create_usage_entries() -> None:
    op.create_table(
        "usage_entries",
        sa.Column("request_id", sa.String(64), nullable=False),
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
        sa.PrimaryKeyConstraint("request_id", name=op.f("pk_usage_entries")),
    )
    op.create_index(op.f("ix_usage_entries_account_id_started_at"), "usage_entries", ["account_id", "started_at"])
