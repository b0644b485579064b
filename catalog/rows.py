"""Database rows of the catalog: read cards, versions and aliases, write one card or alias.

Names are validated by `publish.py` and `aliases.py`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime

from sqlalchemy import delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from catalog.card import ModelCard, encode_card
from catalog.tables import catalog_revision, model_aliases, model_versions, published_models
from storage.database import Database


@asynccontextmanager
async def change(database: Database) -> AsyncIterator[AsyncConnection]:
    """Open a transaction for a change of the catalog.

    Transactions run one at a time, and every registry sees the change.
    """
    async with database.transaction() as connection:
        increment = update(catalog_revision).where(catalog_revision.c.id == 1)
        await connection.execute(increment.values(number=catalog_revision.c.number + 1))
        yield connection


async def read_number(connection: AsyncConnection) -> int:
    """Return the number of changes of the catalog."""
    return int((await connection.execute(select(catalog_revision.c.number))).scalar_one())


async def read_cards(connection: AsyncConnection) -> dict[str, str]:
    """Return name -> card as JSON of all published models."""
    rows = await connection.execute(select(published_models.c.name, published_models.c.card))
    return {row.name: row.card for row in rows}


async def read_aliases(connection: AsyncConnection) -> dict[str, str]:
    """Return alias -> target. A target may itself be an alias."""
    rows = await connection.execute(select(model_aliases.c.name, model_aliases.c.target).order_by(model_aliases.c.name))
    return {row.name: row.target for row in rows}


async def write_card(connection: AsyncConnection, card: ModelCard, now: datetime) -> None:
    """Make `card` the current version of its model."""
    row = {"name": card.name, "revision": card.revision, "card": encode_card(card), "published_at": now}
    same = (model_versions.c.name == card.name) & (model_versions.c.revision == card.revision)
    for table, replaced in ((published_models, published_models.c.name == card.name), (model_versions, same)):
        await connection.execute(delete(table).where(replaced))
        await connection.execute(insert(table).values(**row))


async def delete_card(connection: AsyncConnection, name: str) -> None:
    """Delete a published model with all versions."""
    for table in (published_models, model_versions):
        await connection.execute(delete(table).where(table.c.name == name))


async def read_versions(connection: AsyncConnection, name: str) -> list[tuple[str, datetime]]:
    """Return (card as JSON, publishing time) of all versions of a model, newest first."""
    version = model_versions.c
    query = select(version.card, version.published_at).where(version.name == name)
    rows = await connection.execute(query.order_by(version.published_at.desc(), version.revision))
    return [(row.card, row.published_at) for row in rows]


async def write_alias(connection: AsyncConnection, name: str, target: str, now: datetime) -> None:
    """Create or replace an alias."""
    await delete_alias(connection, name)
    await connection.execute(insert(model_aliases).values(name=name, target=target, created_at=now))


async def delete_alias(connection: AsyncConnection, name: str) -> bool:
    """Delete an alias; return False if it does not exist."""
    result = await connection.execute(delete(model_aliases).where(model_aliases.c.name == name))
    return result.rowcount > 0
