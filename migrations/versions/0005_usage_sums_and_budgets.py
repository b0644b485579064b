"""Usage: what a call cost the platform, sums over calls, how far each spool is, budgets and what they warned of."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

_time = sa.DateTime(timezone=True)
_NUMBERS = (
    "device_us", "bytes_in", "bytes_out", "num_tool_calls", "num_steps", "audio_ms", "num_image_tiles", "num_retried",
)  # fmt: skip
_FLAGS = ("is_useful", "is_batch", "is_summed")
_SUMS = (
    "num_calls", "num_useful", "prompt_tokens", "cached_tokens", "completion_tokens", "micro_neurons", "device_us",
    "bytes_in", "bytes_out", "num_tool_calls", "num_attempts",
)  # fmt: skip


def upgrade() -> None:
    for name in _NUMBERS:
        op.add_column("usage_entries", sa.Column(name, sa.BigInteger(), nullable=False, server_default="0"))
    for name in _FLAGS:
        op.add_column("usage_entries", sa.Column(name, sa.Boolean(), nullable=False, server_default=sa.false()))
    # What the version before writes, or wrote, is not in the sums yet: few rows, or none, so the index is small.
    op.create_index(
        op.f("ix_usage_entries_is_summed"),
        "usage_entries",
        ["is_summed"],
        sqlite_where=sa.text("is_summed = 0"),
        postgresql_where=sa.text("NOT is_summed"),
    )
    op.create_table(
        "usage_sums",
        sa.Column("account_id", sa.String(32), nullable=False),
        sa.Column("starts_at", _time, nullable=False),
        sa.Column("period", sa.String(8), nullable=False),
        sa.Column("model", sa.String(256), nullable=False),
        sa.Column("api_token_id", sa.String(32), nullable=False),
        sa.Column("task", sa.String(64), nullable=False),
        sa.Column("pop", sa.String(64), nullable=False),
        sa.Column("status", sa.String(32), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in _SUMS),
        sa.PrimaryKeyConstraint(
            "account_id", "starts_at", "period", "model", "api_token_id", "task", "pop", "status",
            name=op.f("pk_usage_sums"),
        ),
    )  # fmt: skip
    op.create_index(op.f("ix_usage_sums_period_starts_at"), "usage_sums", ["period", "starts_at"])
    op.create_table(
        "usage_spools",
        sa.Column("spool_id", sa.String(36), nullable=False),
        sa.Column("segment", sa.BigInteger(), nullable=False),
        sa.Column("offset", sa.BigInteger(), nullable=False),
        sa.Column("moved_at", _time, nullable=False),
        sa.PrimaryKeyConstraint("spool_id", name=op.f("pk_usage_spools")),
    )
    op.create_table(
        "budgets",
        sa.Column("account_id", sa.String(32), nullable=False),
        sa.Column("api_token_id", sa.String(32), nullable=False),
        sa.Column("unit", sa.String(8), nullable=False),
        sa.Column("micro_amount", sa.BigInteger(), nullable=False),
        sa.Column("refuses", sa.Boolean(), nullable=False),
        sa.Column("alert_percents", sa.String(64), nullable=False),
        sa.Column("modified_at", _time, nullable=False),
        sa.PrimaryKeyConstraint("account_id", "api_token_id", "unit", name=op.f("pk_budgets")),
        sa.CheckConstraint("unit IN ('neurons', 'usd')", name=op.f("ck_budgets_unit")),
    )
    op.create_table(
        "budget_alerts",
        sa.Column("alert_id", sa.String(128), nullable=False),
        sa.Column("account_id", sa.String(32), nullable=False),
        sa.Column("api_token_id", sa.String(32), nullable=False),
        sa.Column("unit", sa.String(8), nullable=False),
        sa.Column("month", sa.String(7), nullable=False),
        sa.Column("percent", sa.Integer(), nullable=False),
        sa.Column("micro_amount", sa.BigInteger(), nullable=False),
        sa.Column("micro_used", sa.BigInteger(), nullable=False),
        sa.Column("at", _time, nullable=False),
        sa.PrimaryKeyConstraint("alert_id", name=op.f("pk_budget_alerts")),
    )
    op.create_index(op.f("ix_budget_alerts_account_id_at"), "budget_alerts", ["account_id", "at"])


def downgrade() -> None:
    for table in ("budget_alerts", "budgets", "usage_spools", "usage_sums"):
        op.drop_table(table)
    op.drop_index(op.f("ix_usage_entries_is_summed"), table_name="usage_entries")
    with op.batch_alter_table("usage_entries") as entries:
        for name in (*_NUMBERS, *_FLAGS):
            entries.drop_column(name)
