"""Published models, aliases, and the counter of their changes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_time = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "published_models",
        sa.Column("name", sa.String(224), nullable=False),
        sa.Column("revision", sa.String(64), nullable=False),
        sa.Column("card", sa.Text(), nullable=False),
        sa.Column("published_at", _time, nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_published_models")),
    )
    op.create_table(
        "model_aliases",
        sa.Column("name", sa.String(224), nullable=False),
        sa.Column("target", sa.String(224), nullable=False),
        sa.Column("created_at", _time, nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_model_aliases")),
    )
    counter = op.create_table(
        "catalog_revision",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_catalog_revision")),
    )
    op.bulk_insert(counter, [{"id": 1, "number": 0}])


def downgrade() -> None:
    for table in ("catalog_revision", "model_aliases", "published_models"):
        op.drop_table(table)
