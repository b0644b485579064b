"""Users and memberships; policies, conditions and starting times of API tokens; settings and deletion of accounts.

Columns that the version before does not know are nullable. A token whose rights it could not judge has no permission
groups, so that during an upgrade it is refused there rather than let in too widely.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

_time = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.add_column("accounts", sa.Column("settings", sa.Text(), nullable=True))
    op.add_column("accounts", sa.Column("deleted_at", _time, nullable=True))
    op.create_table(
        "users",
        sa.Column("user_id", sa.String(32), nullable=False),
        sa.Column("email", sa.String(254), nullable=False),
        sa.Column("name", sa.String(256), nullable=False),
        sa.Column("global_key_digest", sa.LargeBinary(32), nullable=True),
        sa.Column("created_at", _time, nullable=False),
        sa.Column("decision_epoch", sa.BigInteger(), nullable=False, server_default="0"),
        sa.PrimaryKeyConstraint("user_id", name=op.f("pk_users")),
        sa.UniqueConstraint("email", name=op.f("uq_users_email")),
    )
    op.create_index(op.f("ix_users_decision_epoch"), "users", ["decision_epoch"])
    op.create_table(
        "memberships",
        sa.Column("user_id", sa.String(32), nullable=False),
        sa.Column("account_id", sa.String(32), nullable=False),
        sa.Column("created_at", _time, nullable=False),
        sa.ForeignKeyConstraint(["user_id"], ["users.user_id"], name=op.f("fk_memberships_user_id_users")),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.account_id"], name=op.f("fk_memberships_account_id_accounts")
        ),
        sa.PrimaryKeyConstraint("user_id", "account_id", name=op.f("pk_memberships")),
    )
    op.create_index(op.f("ix_memberships_account_id"), "memberships", ["account_id"])
    op.add_column("api_tokens", sa.Column("user_id", sa.String(32), nullable=True))
    op.add_column("api_tokens", sa.Column("policies", sa.Text(), nullable=True))
    op.add_column("api_tokens", sa.Column("condition", sa.Text(), nullable=True))
    op.add_column("api_tokens", sa.Column("not_before", _time, nullable=True))
    op.add_column("api_tokens", sa.Column("modified_at", _time, nullable=True))
    op.create_index(op.f("ix_api_tokens_user_id"), "api_tokens", ["user_id"])


def downgrade() -> None:
    op.drop_index(op.f("ix_api_tokens_user_id"), "api_tokens")
    for column in ("modified_at", "not_before", "condition", "policies", "user_id"):
        op.drop_column("api_tokens", column)
    for table in ("memberships", "users"):
        op.drop_table(table)
    for column in ("deleted_at", "settings"):
        op.drop_column("accounts", column)
