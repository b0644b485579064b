"""Tables of the catalog: published models and their versions, aliases, deprecations, the counter of changes to these,
fine-tunes, publications, and foreign engines.

Built-in models have no row.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Date,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
    Text,
    UniqueConstraint,
)

from storage.columns import only_row
from storage.database import UtcDateTime, metadata

# The current version of each published model.
published_models = Table(
    "published_models",
    metadata,
    Column("name", String(224), primary_key=True),
    Column("revision", String(64), nullable=False),
    Column("card", Text, nullable=False),  # JSON of catalog.card.ModelCard
    Column("published_at", UtcDateTime, nullable=False),
)

# Every version of each published model, the current one included. Their files stay in the object store.
model_versions = Table(
    "model_versions",
    metadata,
    Column("name", String(224), primary_key=True),
    Column("revision", String(64), primary_key=True),
    Column("card", Text, nullable=False),  # JSON of catalog.card.ModelCard
    Column("published_at", UtcDateTime, nullable=False),
)

# Days from which models are refused, set by the operator. They replace the day in the card.
model_deprecations = Table(
    "model_deprecations",
    metadata,
    Column("name", String(224), primary_key=True),
    Column("day", Date, nullable=False),
    Column("reason", Text, nullable=False),
    Column("successor", String(224), nullable=True),
    Column("created_at", UtcDateTime, nullable=False),
)

# Public ids that are mapped to another model.
model_aliases = Table(
    "model_aliases",
    metadata,
    Column("name", String(224), primary_key=True),
    Column("target", String(224), nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
)

# OpenAI-compatible servers that operators registered. The key is encrypted by the gateway.
foreign_engines = Table(
    "foreign_engines",
    metadata,
    Column("name", String(48), primary_key=True),
    Column("spec", Text, nullable=False),  # JSON of catalog.foreign_engines.EngineSpec
    Column("sealed_key", LargeBinary, nullable=True),
    Column("created_at", UtcDateTime, nullable=False),
)

# Incremented first in every transaction that changes a table above, which serializes writers. Readers poll it.
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
    # The revision that an operator has approved for use by all accounts.
    Column("approved_revision", String(64), nullable=True),
    UniqueConstraint("account_id", "name"),
)

# Models that gateways publish in the background. One gateway at a time leases a publication and renews the lease.
publications = Table(
    "publications",
    metadata,
    Column("publication_id", String(36), primary_key=True),
    # hub or bucket; `location` is the hub repository or the prefix in the object store.
    Column("source", String(16), nullable=False),
    Column("location", String(512), nullable=False),
    # Branch, tag or commit of the hub repository, and the only file to publish ("" for all).
    Column("hub_revision", String(128), nullable=False),
    Column("file", String(256), nullable=False),
    Column("name", String(224), nullable=False),
    # JSON of catalog.card.Prices; null for those of the listed model.
    Column("prices", Text, nullable=True),
    # queued, running, done, failed or cancelled (catalog.publications.State)
    Column("state", String(16), nullable=False),
    Column("done_bytes", BigInteger, nullable=False),
    Column("total_bytes", BigInteger, nullable=False),
    # The current step, or why the publication failed.
    Column("detail", Text, nullable=False),
    # The published version, once it is done.
    Column("revision", String(64), nullable=True),
    Column("created_by", String(128), nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("changed_at", UtcDateTime, nullable=False),
    Column("finished_at", UtcDateTime, nullable=True),
    Column("is_cancelled", Boolean, nullable=False),
    # The gateway that works on the publication, and the end of its lease; null in a final state.
    Column("owner", String(36), nullable=True),
    Column("free_at", UtcDateTime, nullable=True),
    # Number of expired leases.
    Column("num_losses", Integer, nullable=False),
    Index(None, "free_at"),
)
