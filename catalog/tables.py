"""The catalog's rows: published models, aliases, and the counter that says that either changed.

Column definitions only. Built-in models have no row.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Integer, String, Table, Text

from storage.database import UtcDateTime, metadata

# The current version of each published model. Older versions stay in the object store, under their revision.
published_models = Table(
    "published_models",
    metadata,
    Column("name", String(224), primary_key=True),
    Column("revision", String(64), nullable=False),
    Column("card", Text, nullable=False),  # JSON of catalog.card.ModelCard
    Column("published_at", UtcDateTime, nullable=False),
)

# A public id that another model answers.
model_aliases = Table(
    "model_aliases",
    metadata,
    Column("name", String(224), primary_key=True),
    Column("target", String(224), nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
)

# One row, id 1. Raised first in every transaction that changes the two tables above: writers wait for each other on
# it, and readers poll it.
catalog_revision = Table(
    "catalog_revision",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("number", BigInteger, nullable=False),
)
