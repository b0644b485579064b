"""Batches with their chunks, answers and accounts' shares; requests under idempotency keys."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

_time = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "batches",
        sa.Column("batch_id", sa.String(36), nullable=False),
        sa.Column("account_id", sa.String(32), nullable=False),
        sa.Column("api_token_id", sa.String(32), nullable=False),
        sa.Column("shown_model", sa.String(256), nullable=False),
        sa.Column("model", sa.String(224), nullable=False),
        sa.Column("num_requests", sa.Integer(), nullable=False),
        sa.Column("num_done", sa.Integer(), nullable=False),
        sa.Column("created_at", _time, nullable=False),
        sa.Column("started_at", _time, nullable=True),
        sa.Column("finished_at", _time, nullable=True),
        sa.Column("expires_at", _time, nullable=True),
        sa.PrimaryKeyConstraint("batch_id", name=op.f("pk_batches")),
    )
    op.create_index(op.f("ix_batches_expires_at"), "batches", ["expires_at"])
    _create_chunks_and_results()
    op.create_table(
        "batch_shares",
        sa.Column("account_id", sa.String(32), nullable=False),
        sa.Column("taken", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("account_id", name=op.f("pk_batch_shares")),
    )
    op.create_table(
        "idempotency_keys",
        sa.Column("account_id", sa.String(32), nullable=False),
        sa.Column("key_hash", sa.String(64), nullable=False),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("request_id", sa.String(64), nullable=False),
        sa.Column("owner", sa.String(36), nullable=True),
        sa.Column("leased_until", _time, nullable=True),
        sa.Column("answer", sa.LargeBinary(), nullable=True),
        sa.Column("expires_at", _time, nullable=False),
        sa.PrimaryKeyConstraint("account_id", "key_hash", name=op.f("pk_idempotency_keys")),
    )
    op.create_index(op.f("ix_idempotency_keys_expires_at"), "idempotency_keys", ["expires_at"])


def downgrade() -> None:
    for table in ("idempotency_keys", "batch_shares", "batch_results", "batch_chunks", "batches"):
        op.drop_table(table)


def _create_chunks_and_results() -> None:
    op.create_table(
        "batch_chunks",
        sa.Column("batch_id", sa.String(36), nullable=False),
        sa.Column("first", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("account_id", sa.String(32), nullable=False),
        sa.Column("num_requests", sa.Integer(), nullable=False),
        sa.Column("num_done", sa.Integer(), nullable=False),
        sa.Column("cost", sa.BigInteger(), nullable=False),
        sa.Column("free_at", _time, nullable=True),
        sa.Column("owner", sa.String(36), nullable=True),
        sa.Column("num_losses", sa.Integer(), nullable=False),
        sa.Column("requests", sa.LargeBinary(), nullable=True),
        sa.ForeignKeyConstraint(["batch_id"], ["batches.batch_id"], name=op.f("fk_batch_chunks_batch_id_batches")),
        sa.PrimaryKeyConstraint("batch_id", "first", name=op.f("pk_batch_chunks")),
    )
    op.create_index(op.f("ix_batch_chunks_free_at"), "batch_chunks", ["free_at"])
    op.create_index(op.f("ix_batch_chunks_account_id_free_at"), "batch_chunks", ["account_id", "free_at"])
    op.create_table(
        "batch_results",
        sa.Column("batch_id", sa.String(36), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("completion_tokens", sa.BigInteger(), nullable=False),
        sa.Column("answer", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["batch_id"], ["batches.batch_id"], name=op.f("fk_batch_results_batch_id_batches")),
        sa.PrimaryKeyConstraint("batch_id", "number", name=op.f("pk_batch_results")),
    )
