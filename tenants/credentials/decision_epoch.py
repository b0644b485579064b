"""Decision epoch: notify token verifiers that cached decisions are out of date.

Each change to an API token, an account's status or a user increments the epoch and stores the new epoch in the changed
row, in one transaction. The epoch's row is locked until the transaction ends, so a reader that sees epoch N sees every
change up to N.
"""

from __future__ import annotations

from sqlalchemy import select, union_all, update
from sqlalchemy.ext.asyncio import AsyncConnection

from storage.database import Database
from tenants.tables import accounts, api_token_epoch, api_tokens, users

CHANNEL = "api-tokens-changed"
"""Channel that carries the id of a changed API token, account or user. A message only prompts a read of the epoch."""


async def raise_epoch(connection: AsyncConnection) -> int:
    """Increment and return the epoch within the caller's transaction. The caller must store the epoch in the changed
    row."""
    statement = update(api_token_epoch).values(epoch=api_token_epoch.c.epoch + 1).returning(api_token_epoch.c.epoch)
    return int((await connection.execute(statement)).scalar_one())


async def changed_since(database: Database, epoch: int) -> tuple[int, list[str]]:
    """Return the current epoch and the keys of all rows that changed after `epoch`.

    The keys are lookup ids of API tokens, account ids and user ids.
    """
    async with database.connection() as connection:
        now = int((await connection.execute(select(api_token_epoch.c.epoch))).scalar_one())
        if now <= epoch:
            return now, []
        keys = ((api_tokens, api_tokens.c.lookup_id), (accounts, accounts.c.account_id), (users, users.c.user_id))
        query = union_all(*(select(key.label("key")).where(table.c.decision_epoch > epoch) for table, key in keys))
        return now, list((await connection.execute(query)).scalars())
