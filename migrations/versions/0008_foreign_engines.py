"""Foreign engines: OpenAI-compatible servers that operators register."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.create_table(
        "foreign_engines",
        sa.Column("name", sa.String(48), primary_key=True),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("sealed_key", sa.LargeBinary(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
    )
