"""Where to send what a run in the background gave; when an API token was last used; what users say of themselves.

The version before writes none of it: a run that it took keeps its answer to be asked for, as every batch does.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from storage.database import UtcDateTime

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.create_table(
        "batch_webhooks",
        sa.Column("batch_id", sa.String(36), sa.ForeignKey("batches.batch_id"), primary_key=True),
        sa.Column("target", sa.LargeBinary(), nullable=False),
        sa.Column("num_tries", sa.Integer(), nullable=False),
        sa.Column("next_at", UtcDateTime(), nullable=False),
    )
    op.create_index("ix_batch_webhooks_next_at", "batch_webhooks", ["next_at"])
    op.add_column("api_tokens", sa.Column("last_used_at", UtcDateTime(), nullable=True))
    op.add_column("users", sa.Column("profile", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("users", "profile")
    op.drop_column("api_tokens", "last_used_at")
    op.drop_table("batch_webhooks")
