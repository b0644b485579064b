"""Finetunes: LoRA adapters that accounts bring."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

_time = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "finetunes",
        sa.Column("finetune_id", sa.String(36), nullable=False),
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
        sa.PrimaryKeyConstraint("finetune_id", name=op.f("pk_finetunes")),
        sa.UniqueConstraint("account_id", "name", name=op.f("uq_finetunes_account_id_name")),
    )
    op.create_index(op.f("ix_finetunes_name"), "finetunes", ["name"])


def downgrade() -> None:
    op.drop_index(op.f("ix_finetunes_name"), table_name="finetunes")
    op.drop_table("finetunes")
