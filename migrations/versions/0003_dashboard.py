"""Columns and tables of the dashboard: invitations, disabled models, phases of calls, failed requests of batches,
outcomes of webhooks, versions and deprecations of models, and publications.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

_time = sa.DateTime(timezone=True)


def _text(name: str, length: int, **options: object) -> sa.Column[str]:
    return sa.Column(name, sa.String(length), **({"nullable": False} | options))  # type: ignore[arg-type]


def _number(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), nullable=False, server_default="0")


def _index(table: str, *names: str) -> None:
    op.create_index(op.f(f"ix_{table}_{'_'.join(names)}"), table, list(names))


def upgrade() -> None:
    op.add_column("accounts", sa.Column("disabled_models", sa.Text(), nullable=True))
    _add_invitations()
    _change_usage_and_batches()
    _add_model_tables()
    _add_publications()


def _add_invitations() -> None:
    op.create_table(
        "invitations",
        sa.Column("account_id", sa.String(32), sa.ForeignKey("accounts.account_id"), primary_key=True),
        sa.Column("email", sa.String(254), primary_key=True),
        _text("role", 16),
        sa.Column("created_at", _time, nullable=False),
    )
    _index("invitations", "email")


def _change_usage_and_batches() -> None:
    for name in ("queue_us", "prefill_us", "decode_us"):
        op.add_column("usage_entries", _number(name))
    op.add_column("usage_entries", _text("tried_nodes", 512, server_default=""))
    _index("usage_entries", "started_at")
    op.add_column("batches", sa.Column("num_failed", sa.Integer(), nullable=False, server_default="0"))
    _index("batches", "account_id", "batch_id")
    with op.batch_alter_table("batch_webhooks") as table:
        table.alter_column("next_at", existing_type=_time, nullable=True)
        table.add_column(_text("outcome", 32, nullable=True))
        table.add_column(sa.Column("tried_at", _time, nullable=True))


def _add_model_tables() -> None:
    op.create_table(
        "model_versions",
        sa.Column("name", sa.String(224), primary_key=True),
        sa.Column("revision", sa.String(64), primary_key=True),
        sa.Column("card", sa.Text(), nullable=False),
        sa.Column("published_at", _time, nullable=False),
    )
    op.execute(
        "INSERT INTO model_versions (name, revision, card, published_at) "
        "SELECT name, revision, card, published_at FROM published_models"
    )
    op.create_table(
        "model_deprecations",
        sa.Column("name", sa.String(224), primary_key=True),
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        _text("successor", 224, nullable=True),
        sa.Column("created_at", _time, nullable=False),
    )


def _add_publications() -> None:
    op.create_table(
        "publications",
        sa.Column("publication_id", sa.String(36), primary_key=True),
        _text("source", 16),
        _text("location", 512),
        _text("hub_revision", 128),
        _text("file", 256),
        _text("name", 224),
        sa.Column("prices", sa.Text(), nullable=True),
        _text("state", 16),
        sa.Column("done_bytes", sa.BigInteger(), nullable=False),
        sa.Column("total_bytes", sa.BigInteger(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        _text("revision", 64, nullable=True),
        _text("created_by", 128),
        sa.Column("created_at", _time, nullable=False),
        sa.Column("changed_at", _time, nullable=False),
        sa.Column("finished_at", _time, nullable=True),
        sa.Column("is_cancelled", sa.Boolean(), nullable=False),
        _text("owner", 36, nullable=True),
        sa.Column("free_at", _time, nullable=True),
        sa.Column("num_losses", sa.Integer(), nullable=False),
    )
    _index("publications", "free_at")
