"""Stored responses in the database: sealed bytes by id and account, until they expire."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import delete, insert, select

from storage.database import Database
from tenants.tables import responses

MAX_EXPIRED = 200  # responses deleted in one transaction


@dataclass(frozen=True)
class ResponseRow:
    """One stored response. `turns` is None until the response is finished."""

    response_id: str
    account_id: str
    expires_at: datetime
    record: bytes
    turns: bytes | None


async def keep(database: Database, rows: Sequence[ResponseRow]) -> None:
    """Store responses, replacing those with the same ids. Raises StoreUnavailable."""
    values = list({row.response_id: vars(row) for row in rows}.values())
    async with database.transaction() as connection:
        await connection.execute(
            delete(responses).where(responses.c.response_id.in_([row["response_id"] for row in values]))
        )
        await connection.execute(insert(responses), values)


async def find(database: Database, account_id: str, response_id: str, now: datetime) -> ResponseRow | None:
    """Return the account's stored response, or None. Raises StoreUnavailable."""
    row = responses.c
    query = select(responses).where(row.response_id == response_id, row.account_id == account_id, row.expires_at > now)
    async with database.connection() as connection:
        found = (await connection.execute(query)).mappings().first()
    return None if found is None else ResponseRow(**found)


async def remove(database: Database, account_id: str, response_id: str) -> None:
    """Delete the account's stored response. Raises StoreUnavailable."""
    row = responses.c
    async with database.transaction() as connection:
        await connection.execute(delete(responses).where(row.response_id == response_id, row.account_id == account_id))


async def expire(database: Database, now: datetime) -> int:
    """Delete up to MAX_EXPIRED expired responses and return their number. Raises StoreUnavailable."""
    over = select(responses.c.response_id).where(responses.c.expires_at <= now).limit(MAX_EXPIRED)
    async with database.connection() as connection:
        ids = list((await connection.execute(over)).scalars())
    if ids:
        async with database.transaction() as connection:
            await connection.execute(delete(responses).where(responses.c.response_id.in_(ids)))
    return len(ids)
