"""Join tokens and the keys of enrolled nodes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.create_table(
        "node_join_tokens",
        sa.Column("digest", sa.LargeBinary(32), primary_key=True),
        sa.Column("pop", sa.String(64), nullable=False),
        sa.Column("node_id", sa.String(64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("used_at", sa.DateTime(timezone=True), nullable=True),
    )
    op.create_table(
        "node_keys",
        sa.Column("kid", sa.String(32), primary_key=True),
        sa.Column("subject", sa.String(80), nullable=False),
        sa.Column("public", sa.String(64), nullable=False),
        sa.Column("not_before", sa.BigInteger(), nullable=False),
        sa.Column("not_after", sa.BigInteger(), nullable=False),
        sa.Column("pop", sa.String(64), nullable=False),
    )
