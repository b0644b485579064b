"""Idempotency keys in the database: the gateway that works on a request, and the stored response until it expires.

The gateway that works on a request leases its key. After the lease expires, the next request takes over under the
request id of the first, so there is one usage entry. A rejected request leaves no row. Responses are sealed bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, and_, delete, insert, select, update

from storage.database import Database, insert_new
from tenants.tables import idempotency_keys

MAX_EXPIRED = 1000  # keys deleted in one transaction


@dataclass(frozen=True)
class Keyed:
    """A request with an idempotency key. `key_hash` and `fingerprint` are 64 hexadecimal digits each."""

    account_id: str
    key_hash: str
    fingerprint: str


@dataclass(frozen=True)
class Claimed:
    """The caller holds the lease and must respond, under this request id. `owner` identifies the lease."""

    keyed: Keyed
    owner: str
    request_id: str


@dataclass(frozen=True)
class Completed:
    """The request has a stored response."""

    response: bytes


@dataclass(frozen=True)
class InUse:
    """Another gateway is working on the request or, if `is_other`, the key was used for a different request."""

    is_other: bool


async def take(
    database: Database, keyed: Keyed, owner: str, request_id: str, now: datetime, *, lease_s: float, ttl_s: float
) -> Claimed | Completed | InUse:
    """Lease a key, or return why that is not possible. Raises StoreUnavailable."""
    fresh = {
        "fingerprint": keyed.fingerprint,
        "request_id": request_id,
        "owner": owner,
        "leased_until": now + timedelta(seconds=lease_s),
        "answer": None,
        "expires_at": now + timedelta(seconds=ttl_s),
    }
    key: dict[str, Any] = {"account_id": keyed.account_id, "key_hash": keyed.key_hash}
    async with database.transaction() as connection:
        new = insert_new(idempotency_keys, database.dialect, key=tuple(key)).returning(idempotency_keys.c.key_hash)
        if (await connection.execute(new, [key | fresh])).first() is not None:
            return Claimed(keyed, owner, request_id)
        found = select(idempotency_keys).where(_at(keyed)).with_for_update()
        row = (await connection.execute(found)).mappings().first()
        if row is None:  # deleted by its owner meanwhile
            await connection.execute(insert(idempotency_keys).values(**key, **fresh))
            return Claimed(keyed, owner, request_id)
        if row["expires_at"] > now:
            if row["fingerprint"] != keyed.fingerprint:
                return InUse(is_other=True)
            if row["answer"] is not None:
                return Completed(row["answer"])
            if row["leased_until"] > now:
                return InUse(is_other=False)
            fresh["request_id"] = row["request_id"]
        await connection.execute(update(idempotency_keys).where(_at(keyed)).values(**fresh))
        return Claimed(keyed, owner, str(fresh["request_id"]))


async def store(database: Database, claimed: Claimed, response: bytes) -> bool:
    """Store the response. Returns False, and stores nothing, if another gateway has taken over. Raises
    StoreUnavailable."""
    async with database.transaction() as connection:
        own = update(idempotency_keys).where(_at(claimed.keyed), idempotency_keys.c.owner == claimed.owner)
        done = await connection.execute(own.values(answer=response, owner=None, leased_until=None))
    return done.rowcount == 1


async def give_up(database: Database, claimed: Claimed) -> None:
    """Delete the key of a rejected request: the next request with this key is new. Raises StoreUnavailable."""
    async with database.transaction() as connection:
        own = delete(idempotency_keys).where(_at(claimed.keyed), idempotency_keys.c.owner == claimed.owner)
        await connection.execute(own)


async def renew(database: Database, held: Iterable[Claimed], now: datetime, lease_s: float) -> None:
    """Renew the leases. Raises StoreUnavailable."""
    until = now + timedelta(seconds=lease_s)
    async with database.transaction() as connection:
        for claimed in held:
            own = update(idempotency_keys).where(_at(claimed.keyed), idempotency_keys.c.owner == claimed.owner)
            await connection.execute(own.values(leased_until=until))


async def expire(database: Database, now: datetime) -> int:
    """Delete up to MAX_EXPIRED expired keys and return their number. Raises StoreUnavailable."""
    key = idempotency_keys.c
    over = select(key.account_id, key.key_hash).where(key.expires_at <= now).limit(MAX_EXPIRED)
    async with database.transaction() as connection:
        found = (await connection.execute(over)).all()
        for account_id, key_hash in found:
            one = and_(key.account_id == account_id, key.key_hash == key_hash, key.expires_at <= now)
            await connection.execute(delete(idempotency_keys).where(one))
    return len(found)


def _at(keyed: Keyed) -> ColumnElement[bool]:
    key = idempotency_keys.c
    return and_(key.account_id == keyed.account_id, key.key_hash == keyed.key_hash)
