"""Tables of the catalog: published models, aliases, the counter of their changes, and fine-tunes.

Built-in models have no row.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, String, Table, Text, UniqueConstraint

from storage.columns import only_row
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

# Public ids that are mapped to another model.
model_aliases = Table(
    "model_aliases",
    metadata,
    Column("name", String(224), primary_key=True),
    Column("target", String(224), nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
)

# Incremented first in every transaction that changes the two tables above, which serializes writers. Readers poll it.
catalog_revision = Table(
    "catalog_revision",
    metadata,
    only_row(),
    Column("number", BigInteger, nullable=False),
)

# LoRA adapters of accounts. Their files are in the object store under their digests.
finetunes = Table(
    "finetunes",
    metadata,
    Column("finetune_id", String(36), primary_key=True),
    Column("account_id", String(32), nullable=False),
    Column("name", String(128), nullable=False, index=True),
    Column("model", String(224), nullable=False),
    Column("description", Text, nullable=False),
    Column("is_public", Boolean, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("modified_at", UtcDateTime, nullable=False),
    Column("config_sha256", String(64), nullable=True),
    Column("config_bytes", BigInteger, nullable=True),
    Column("weights_sha256", String(64), nullable=True),
    Column("weights_bytes", BigInteger, nullable=True),
    # Digest of the manifest, once both files are uploaded.
    Column("revision", String(64), nullable=True),
    UniqueConstraint("account_id", "name"),
)
