"""Responses that are kept, as rows: sealed bytes by id, each its account's, for a while. Knows no turns and no HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import delete, insert, select

from storage.database import Database
from tenants.tables import responses

MAX_EXPIRED = 200  # let go of in one transaction


@dataclass(frozen=True)
class Kept:
    """One response. `turns` None: it is not finished."""

    response_id: str
    account_id: str
    expires_at: datetime
    record: bytes
    turns: bytes | None


async def keep(database: Database, kept: Sequence[Kept]) -> None:
    """Keep these, in place of what was kept under their ids. Raises StoreUnavailable."""
    rows = list({each.response_id: vars(each) for each in kept}.values())
    async with database.transaction() as connection:
        await connection.execute(
            delete(responses).where(responses.c.response_id.in_([row["response_id"] for row in rows]))
        )
        await connection.execute(insert(responses), rows)


async def find(database: Database, account_id: str, response_id: str, now: datetime) -> Kept | None:
    """One of the account's that is kept. Raises StoreUnavailable."""
    row = responses.c
    query = select(responses).where(row.response_id == response_id, row.account_id == account_id, row.expires_at > now)
    async with database.connection() as connection:
        found = (await connection.execute(query)).mappings().first()
    return None if found is None else Kept(**found)


async def remove(database: Database, account_id: str, response_id: str) -> None:
    """Keep it no more. Raises StoreUnavailable."""
    row = responses.c
    async with database.transaction() as connection:
        await connection.execute(delete(responses).where(row.response_id == response_id, row.account_id == account_id))


async def expire(database: Database, now: datetime) -> int:
    """Let go of those whose time is over, some at a time; returns how many. Raises StoreUnavailable."""
    over = select(responses.c.response_id).where(responses.c.expires_at <= now).limit(MAX_EXPIRED)
    async with database.connection() as connection:
        ids = list((await connection.execute(over)).scalars())
    if ids:
        async with database.transaction() as connection:
            await connection.execute(delete(responses).where(responses.c.response_id.in_(ids)))
    return len(ids)
