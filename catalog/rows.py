"""Reads and writes the catalog's rows: one card or alias at a time to write, everything at once to read.

Knows no built-in models and judges no names; `publish.py` and `aliases.py` do before they come here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime

from sqlalchemy import delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from catalog.card import ModelCard, encode_card
from catalog.tables import catalog_revision, model_aliases, published_models
from storage.database import Database


@asynccontextmanager
async def change(database: Database) -> AsyncIterator[AsyncConnection]:
    """A transaction for a change to the catalog. Only one is open at a time; every registry hears of it."""
    async with database.transaction() as connection:
        raised = update(catalog_revision).where(catalog_revision.c.id == 1)
        await connection.execute(raised.values(number=catalog_revision.c.number + 1))
        yield connection


async def read_number(connection: AsyncConnection) -> int:
    """How often the catalog has changed."""
    return int((await connection.execute(select(catalog_revision.c.number))).scalar_one())


async def read_cards(connection: AsyncConnection) -> dict[str, str]:
    """Name -> card text of every published model."""
    rows = await connection.execute(select(published_models.c.name, published_models.c.card))
    return {row.name: row.card for row in rows}


async def read_aliases(connection: AsyncConnection) -> dict[str, str]:
    """Name -> target, as written: a target may itself be an alias."""
    rows = await connection.execute(select(model_aliases.c.name, model_aliases.c.target).order_by(model_aliases.c.name))
    return {row.name: row.target for row in rows}


async def write_card(connection: AsyncConnection, card: ModelCard, now: datetime) -> None:
    """Make `card` the current version of its model."""
    await connection.execute(delete(published_models).where(published_models.c.name == card.name))
    await connection.execute(
        insert(published_models).values(
            name=card.name, revision=card.revision, card=encode_card(card), published_at=now
        )
    )


async def write_alias(connection: AsyncConnection, name: str, target: str, now: datetime) -> None:
    await delete_alias(connection, name)
    await connection.execute(insert(model_aliases).values(name=name, target=target, created_at=now))


async def delete_alias(connection: AsyncConnection, name: str) -> bool:
    """Whether there was one."""
    result = await connection.execute(delete(model_aliases).where(model_aliases.c.name == name))
    return result.rowcount > 0
