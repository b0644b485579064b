"""Webhook deliveries of batches in the database.

A gateway that takes a delivery has it until the next attempt is due; a delivery without a next attempt is over, and its
row is deleted with its batch. A delivery is repeated if a gateway dies before it stores the outcome. Targets are sealed
bytes.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from sqlalchemy import func, or_, select, update

from storage.database import Database
from tenants.tables import batch_webhooks, batches

DELIVERED = "delivered"
_MAX_OUTCOME = 32  # characters, the width of the column

DeliveryState = Literal["waiting", "pending", "retrying", "delivered", "failed"]
"""`waiting`: the batch is not finished. `failed`: no further attempt is made."""


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


@dataclass(frozen=True)
class Delivery:
    """A delivery as its account sees it. `outcome` is the result of the last attempt, None before the first."""

    batch_id: str
    target: bytes
    num_tries: int
    next_at: datetime | None
    outcome: str | None
    tried_at: datetime | None
    finished_at: datetime | None

    @property
    def state(self) -> DeliveryState:
        if self.next_at is None:
            return "delivered" if self.outcome == DELIVERED else "failed"
        if self.finished_at is None:
            return "waiting"
        return "pending" if self.outcome is None else "retrying"


async def take(
    database: Database, now: datetime, *, limit: int, lease_s: float, excluded: Collection[str] = ()
) -> list[Due]:
    """Take up to `limit` due deliveries, the longest waiting first, for `lease_s`. Leaves out those of accounts in
    `excluded`. Raises StoreUnavailable."""
    hook, batch = batch_webhooks.c, batches.c
    columns = (hook.batch_id, hook.target, hook.num_tries, batch.account_id, batch.requested_model, batch.num_requests)
    query = select(*columns, batch.finished_at).join(batches).where(hook.next_at <= now, batch.finished_at.is_not(None))
    query = query.where(batch.account_id.not_in(excluded)).order_by(hook.next_at, hook.batch_id).limit(limit)
    async with database.connection() as connection:
        if (await connection.execute(query.limit(1))).first() is None:
            return []
    async with database.transaction() as connection:
        rows = (await connection.execute(query.with_for_update(skip_locked=True, of=batch_webhooks))).mappings().all()
        lease = {"num_tries": hook.num_tries + 1, "next_at": now + timedelta(seconds=lease_s)}
        for row in rows:
            await connection.execute(update(batch_webhooks).where(hook.batch_id == row["batch_id"]).values(**lease))
    return [Due(**{**row, "num_tries": row["num_tries"] + 1}) for row in rows]


async def finish_attempt(
    database: Database, batch_id: str, outcome: str, now: datetime, next_at: datetime | None
) -> None:
    """Store the outcome of an attempt, such as `delivered`, and the time of the next one; None ends the delivery.
    Raises StoreUnavailable."""
    values = {"outcome": outcome[:_MAX_OUTCOME], "tried_at": now, "next_at": next_at}
    async with database.transaction() as connection:
        this = batch_webhooks.c.batch_id == batch_id
        await connection.execute(update(batch_webhooks).where(this).values(**values))


async def list_deliveries(
    database: Database, account_id: str, now: datetime, limit: int, *, offset: int = 0
) -> tuple[list[Delivery], int]:
    """Return a page of the account's deliveries, the newest batch first, and the number of all. Raises
    StoreUnavailable."""
    hook, batch = batch_webhooks.c, batches.c
    where = (batch.account_id == account_id, or_(batch.expires_at.is_(None), batch.expires_at > now))
    columns = (hook.batch_id, hook.target, hook.num_tries, hook.next_at, hook.outcome, hook.tried_at)
    query = select(*columns, batch.finished_at).join(batches).where(*where)
    query = query.order_by(hook.batch_id.desc()).limit(limit).offset(offset)
    count = select(func.count()).select_from(batch_webhooks).join(batches).where(*where)
    async with database.connection() as connection:
        found = [Delivery(**row) for row in (await connection.execute(query)).mappings()]
        return found, int((await connection.execute(count)).scalar_one())
