"""Webhook deliveries of batches in the database.

A gateway that takes a delivery has it until the next attempt is due; a finished or abandoned delivery has no row. A
delivery is repeated if a gateway dies before it deletes the row. Targets are sealed bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import delete, select, update

from storage.database import Database
from tenants.tables import batch_webhooks, batches


@dataclass(frozen=True)
class Due:
    """A finished batch whose results are due for delivery. `num_tries` includes this attempt."""

    batch_id: str
    account_id: str
    requested_model: str
    num_requests: int
    finished_at: datetime
    target: bytes
    num_tries: int


async def take(database: Database, now: datetime, *, limit: int, lease_s: float) -> list[Due]:
    """Take up to `limit` due deliveries, the longest waiting first, for `lease_s`. Raises StoreUnavailable."""
    hook, batch = batch_webhooks.c, batches.c
    columns = (hook.batch_id, hook.target, hook.num_tries, batch.account_id, batch.requested_model, batch.num_requests)
    query = select(*columns, batch.finished_at).join(batches).where(hook.next_at <= now, batch.finished_at.is_not(None))
    query = query.order_by(hook.next_at, hook.batch_id).limit(limit)
    async with database.connection() as connection:
        if (await connection.execute(query.limit(1))).first() is None:
            return []
    async with database.transaction() as connection:
        rows = (await connection.execute(query.with_for_update(skip_locked=True, of=batch_webhooks))).mappings().all()
        lease = {"num_tries": hook.num_tries + 1, "next_at": now + timedelta(seconds=lease_s)}
        for row in rows:
            await connection.execute(update(batch_webhooks).where(hook.batch_id == row["batch_id"]).values(**lease))
    return [Due(**{**row, "num_tries": row["num_tries"] + 1}) for row in rows]


async def postpone(database: Database, batch_id: str, next_at: datetime) -> None:
    """Schedule the next attempt. Raises StoreUnavailable."""
    async with database.transaction() as connection:
        this = batch_webhooks.c.batch_id == batch_id
        await connection.execute(update(batch_webhooks).where(this).values(next_at=next_at))


async def remove(database: Database, batch_id: str) -> None:
    """Delete a delivery. Raises StoreUnavailable."""
    async with database.transaction() as connection:
        await connection.execute(delete(batch_webhooks).where(batch_webhooks.c.batch_id == batch_id))
