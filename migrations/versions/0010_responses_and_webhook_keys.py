"""Responses that are kept as rows, those that run in the background, and the keys that webhooks are signed with.

The version before keeps responses elsewhere, for an hour: neither version goes on from the other's. It would take a
response that runs in the background for a run, and refuse it: upgrade every gateway before clients ask for one.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from storage.database import UtcDateTime

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.add_column("batches", sa.Column("kind", sa.String(16), nullable=False, server_default="run"))
    op.add_column("batches", sa.Column("cancelled_at", UtcDateTime(), nullable=True))
    op.create_table(
        "responses",
        sa.Column("response_id", sa.String(37), primary_key=True),
        sa.Column("account_id", sa.String(32), nullable=False),
        sa.Column("expires_at", UtcDateTime(), nullable=False),
        sa.Column("record", sa.LargeBinary(), nullable=False),
        sa.Column("turns", sa.LargeBinary(), nullable=True),
    )
    op.create_index("ix_responses_expires_at", "responses", ["expires_at"])
    op.create_table(
        "webhook_keys",
        sa.Column("key_id", sa.String(36), primary_key=True),
        sa.Column("account_id", sa.String(32), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("expires_at", UtcDateTime(), nullable=True),
    )
    op.create_index("ix_webhook_keys_account_id", "webhook_keys", ["account_id"])


def downgrade() -> None:
    op.drop_table("webhook_keys")
    op.drop_table("responses")
    op.drop_column("batches", "cancelled_at")
    op.drop_column("batches", "kind")
