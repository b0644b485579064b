"""Operators approve public fine-tunes for use by all accounts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("finetunes", sa.Column("approved_revision", sa.String(64), nullable=True))
