"""What tells every verifier that something it remembers has changed.

Each change to an API token, to an account's standing or to a user raises one number and marks its row with it, in one
transaction. The number's row is locked until that transaction ends, so whoever reads epoch N sees every change up to N.
"""

from __future__ import annotations

import contextlib

from sqlalchemy import select, union_all, update
from sqlalchemy.ext.asyncio import AsyncConnection

from storage.database import Database
from storage.ephemeral import Ephemeral
from storage.errors import StoreUnavailable
from tenants.tables import accounts, api_token_epoch, api_tokens, users

CHANNEL = "api-tokens-changed"
"""Published with the id of the API token, account or user concerned: a hint to look now, never the proof."""


async def raise_epoch(connection: AsyncConnection) -> int:
    """The epoch of a change made in the caller's transaction, which marks the changed row with it."""
    statement = update(api_token_epoch).values(epoch=api_token_epoch.c.epoch + 1).returning(api_token_epoch.c.epoch)
    return int((await connection.execute(statement)).scalar_one())


async def changed_since(database: Database, epoch: int) -> tuple[int, list[str]]:
    """The epoch now, and the marks of all about which anything changed after `epoch`: lookup ids of API tokens, account
    ids and user ids."""
    async with database.connection() as connection:
        now = int((await connection.execute(select(api_token_epoch.c.epoch))).scalar_one())
        if now <= epoch:
            return now, []
        marks = ((api_tokens, api_tokens.c.lookup_id), (accounts, accounts.c.account_id), (users, users.c.user_id))
        query = union_all(*(select(mark.label("mark")).where(table.c.decision_epoch > epoch) for table, mark in marks))
        return now, list((await connection.execute(query)).scalars())


async def tell(ephemeral: Ephemeral | None, changed_id: str) -> None:
    """Hint at a change that is committed; whoever misses it sees the epoch a second later."""
    if ephemeral is not None:
        with contextlib.suppress(StoreUnavailable):
            await ephemeral.publish(CHANNEL, changed_id.encode())
