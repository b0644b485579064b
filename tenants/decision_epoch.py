"""What tells every verifier that something it remembers has changed.

Each change to an API token or to an account's standing raises one number and marks its row with it, in one
transaction. The number's row is locked until that transaction ends, so whoever reads epoch N sees every change up to N.
"""

from __future__ import annotations

from sqlalchemy import or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from storage.database import Database
from tenants.tables import accounts, api_token_epoch, api_tokens

CHANNEL = "api-tokens-changed"
"""Published with the id of the API token or account concerned: a hint to look now, never the proof."""


async def raise_epoch(connection: AsyncConnection) -> int:
    """The epoch of a change made in the caller's transaction, which marks the changed row with it."""
    statement = update(api_token_epoch).values(epoch=api_token_epoch.c.epoch + 1).returning(api_token_epoch.c.epoch)
    return int((await connection.execute(statement)).scalar_one())


async def changed_since(database: Database, epoch: int) -> tuple[int, list[str]]:
    """The epoch now, and the lookup ids of all API tokens about which anything changed after `epoch`."""
    async with database.connection() as connection:
        now = int((await connection.execute(select(api_token_epoch.c.epoch))).scalar_one())
        if now <= epoch:
            return now, []
        changed = or_(api_tokens.c.decision_epoch > epoch, accounts.c.decision_epoch > epoch)
        query = select(api_tokens.c.lookup_id).join(accounts).where(changed)
        return now, list((await connection.execute(query)).scalars())
