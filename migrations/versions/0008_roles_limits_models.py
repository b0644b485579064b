"""Roles of members; limits of accounts and of API tokens, and the models that a token may run.

The version before knows none of them: during an upgrade its gateways let a viewer act as an administrator and a token
run every model, as they did. Give such rights once all gateways are of this version.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.add_column("accounts", sa.Column("limits", sa.Text(), nullable=False, server_default=""))
    op.add_column("memberships", sa.Column("role", sa.String(16), nullable=False, server_default="administrator"))
    op.add_column("api_tokens", sa.Column("limits", sa.Text(), nullable=False, server_default=""))
    op.add_column("api_tokens", sa.Column("models", sa.Text(), nullable=True))


def downgrade() -> None:
    for column in ("models", "limits"):
        op.drop_column("api_tokens", column)
    op.drop_column("memberships", "role")
    op.drop_column("accounts", "limits")
