"""Overrides of autoscaling, and capacity reserved for accounts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0004"


def upgrade() -> None:
    op.create_table(
        "scaling_overrides",
        sa.Column("model", sa.String(224), primary_key=True),
        sa.Column("pop", sa.String(64), primary_key=True),
        sa.Column("min_replicas", sa.Integer(), nullable=False),
        sa.Column("max_replicas", sa.Integer(), nullable=True),
        sa.Column("is_pinned", sa.Boolean(), nullable=False),
        sa.Column("modified_at", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_table(
        "capacity_reservations",
        sa.Column("account_id", sa.String(32), primary_key=True),
        sa.Column("model", sa.String(224), primary_key=True),
        sa.Column("pop", sa.String(64), primary_key=True),
        sa.Column("tokens_per_s", sa.Float(), nullable=False),
        sa.Column("modified_at", sa.DateTime(timezone=True), nullable=False),
    )
