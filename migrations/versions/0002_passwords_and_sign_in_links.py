"""Users sign in with a browser: password, role on the whole platform, end of all sessions, one-time links."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column("users", sa.Column("password_hash", sa.String(256), nullable=True))
    op.add_column("users", sa.Column("platform_role", sa.String(16), nullable=True))
    op.add_column("users", sa.Column("session_generation", sa.Integer(), nullable=False, server_default="0"))
    op.create_table(
        "sign_in_links",
        sa.Column("digest", sa.LargeBinary(32), primary_key=True),
        sa.Column("user_id", sa.String(32), sa.ForeignKey("users.user_id"), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_index(op.f("ix_sign_in_links_user_id"), "sign_in_links", ["user_id"])
