"""Publications: models that gateways publish in the background, one row each.

A worker leases a publication, renews the lease with the progress, and stores the result. When a lease expires, another
worker takes the publication and continues with the files that are already there. Publications that are over are kept,
the newest MAX_KEPT of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec
from msgspec import Struct, structs
from sqlalchemy import ColumnElement, delete, func, insert, or_, select, update
from sqlalchemy.engine import RowMapping
from sqlalchemy.ext.asyncio import AsyncConnection

from catalog.card import Prices, parse_model_id
from catalog.tables import publications
from storage.columns import uuid7
from storage.database import Database
from storage.errors import StoreError

Source = Literal["hub", "bucket"]
State = Literal["queued", "running", "done", "failed", "cancelled"]
FINAL: frozenset[State] = frozenset({"done", "failed", "cancelled"})

MAX_OPEN = 100  # publications that are not over
MAX_KEPT = 500
MAX_LOSSES = 5  # workers that died with a publication before it fails
_MAX_DETAIL = 2000  # characters

Note = Callable[[AsyncConnection], Awaitable[None]]
"""Appends an audit entry in the transaction that changes a publication."""


class TooManyPublications(StoreError):
    """The maximum number of publications is waiting or running."""


class Publication(Struct, frozen=True, kw_only=True):
    """One publication. `location` is the hub repository or the prefix in the object store; `detail` the current step,
    or why the publication failed; `revision` the published version."""

    publication_id: str
    source: Source
    location: str
    hub_revision: str
    file: str
    name: str
    prices: Prices | None
    state: State
    done_bytes: int
    total_bytes: int
    detail: str
    revision: str | None
    created_by: str
    created_at: datetime
    changed_at: datetime
    finished_at: datetime | None
    is_cancelled: bool
    num_losses: int


_COLUMNS = [publications.c[name] for name in Publication.__struct_fields__]


async def submit(
    database: Database,
    source: Source,
    location: str,
    name: str,
    now: datetime,
    *,
    hub_revision: str = "",
    file: str = "",
    prices: Prices | None = None,
    created_by: str = "",
    note: Note | None = None,
) -> Publication:
    """Queue a publication. Raises InvalidModelId, TooManyPublications, StoreUnavailable."""
    made = Publication(
        publication_id=uuid7(),
        source=source,
        location=location,
        hub_revision=hub_revision,
        file=file,
        name=parse_model_id(name),
        prices=prices,
        state="queued",
        done_bytes=0,
        total_bytes=0,
        detail="waiting for a gateway",
        revision=None,
        created_by=created_by,
        created_at=now,
        changed_at=now,
        finished_at=None,
        is_cancelled=False,
        num_losses=0,
    )
    row = structs.asdict(made) | {"owner": None, "free_at": now}
    row["prices"] = None if prices is None else msgspec.json.encode(prices).decode()
    async with database.transaction() as connection:
        count = select(func.count()).select_from(publications).where(publications.c.free_at.is_not(None))
        if (await connection.execute(count)).scalar_one() >= MAX_OPEN:
            raise TooManyPublications(f"{MAX_OPEN} publications are waiting or running")
        await connection.execute(insert(publications).values(**row))
        await _forget_oldest(connection)
        if note is not None:
            await note(connection)
    return made


async def list_all(database: Database, limit: int, *, offset: int = 0) -> tuple[list[Publication], int]:
    """Return a page of all publications, newest first, and the number of all. Raises StoreUnavailable."""
    query = select(*_COLUMNS).order_by(publications.c.publication_id.desc()).limit(limit).offset(offset)
    async with database.connection() as connection:
        found = [_publication(row) for row in (await connection.execute(query)).mappings()]
        total = (await connection.execute(select(func.count()).select_from(publications))).scalar_one()
    return found, int(total)


async def find(database: Database, publication_id: str) -> Publication | None:
    async with database.connection() as connection:
        return await _find(connection, publication_id)


async def changed_since(database: Database, moment: datetime) -> list[Publication]:
    """Return the publications that changed after `moment`, in the order of their changes. Raises StoreUnavailable."""
    query = select(*_COLUMNS).where(publications.c.changed_at > moment).order_by(publications.c.changed_at)
    async with database.connection() as connection:
        return [_publication(row) for row in (await connection.execute(query)).mappings()]


async def cancel(
    database: Database, publication_id: str, now: datetime, *, note: Note | None = None
) -> Publication | None:
    """Cancel a publication: at once if it waits, else its worker ends it. One that is over is left unchanged. Return
    the publication, or None if it does not exist. Raises StoreUnavailable."""
    this = publications.c.publication_id == publication_id
    is_open, is_waiting = publications.c.free_at.is_not(None), publications.c.owner.is_(None)
    over = {"state": "cancelled", "detail": "", "free_at": None, "finished_at": now}
    async with database.transaction() as connection:
        marked = update(publications).where(this, is_open, publications.c.is_cancelled.is_(False))
        if (await connection.execute(marked.values(is_cancelled=True, changed_at=now))).rowcount:
            waiting = update(publications).where(this, is_waiting)
            await connection.execute(waiting.values(**over))
            if note is not None:
                await note(connection)
        return await _find(connection, publication_id)


async def take(database: Database, owner: str, now: datetime, lease_s: float) -> Publication | None:
    """Lease the oldest publication that waits or whose lease has expired, or return None. Raises StoreUnavailable."""
    row = publications.c
    free = select(row.publication_id, row.owner, row.num_losses).where(row.free_at <= now)
    free = free.order_by(row.publication_id).limit(1)
    async with database.connection() as connection:
        if (await connection.execute(free)).first() is None:
            return None
    async with database.transaction() as connection:
        found = (await connection.execute(free.with_for_update(skip_locked=True))).first()
        if found is None:
            return None
        num_losses = found.num_losses + (found.owner is not None)
        lease = {"owner": owner, "free_at": now + timedelta(seconds=lease_s), "num_losses": num_losses}
        lease |= {"state": "running", "changed_at": now}
        this = row.publication_id == found.publication_id
        await connection.execute(update(publications).where(this).values(**lease))
        return await _find(connection, found.publication_id)


async def renew(
    database: Database,
    owner: str,
    publication_id: str,
    now: datetime,
    lease_s: float,
    *,
    done_bytes: int,
    total_bytes: int,
    detail: str,
) -> bool:
    """Renew the lease and store the progress. Return False if the publication was cancelled or the lease is lost.
    Raises StoreUnavailable."""
    row = publications.c
    progress = {"done_bytes": done_bytes, "total_bytes": total_bytes, "detail": detail[:_MAX_DETAIL]}
    is_changed = or_(*(row[name] != value for name, value in progress.items()))
    async with database.transaction() as connection:
        mine = _is_leased(publication_id, owner)
        await connection.execute(update(publications).where(mine, is_changed).values(**progress, changed_at=now))
        renewed = update(publications).where(mine).values(free_at=now + timedelta(seconds=lease_s))
        is_cancelled = (await connection.execute(renewed.returning(row.is_cancelled))).scalar_one_or_none()
    return is_cancelled is False


async def finish(
    database: Database,
    owner: str,
    publication_id: str,
    state: State,
    now: datetime,
    *,
    detail: str = "",
    revision: str | None = None,
    total_bytes: int = 0,
) -> None:
    """Store the end of a publication, unless the lease is lost. `total_bytes` is the size of a completed publication.

    Raises StoreUnavailable.
    """
    values: dict[str, Any] = {
        "state": state, "detail": detail[:_MAX_DETAIL], "revision": revision, "finished_at": now
    }  # fmt: skip
    if state == "done":  # the last report of progress may not have been stored
        values |= {"done_bytes": total_bytes, "total_bytes": total_bytes}
    async with database.transaction() as connection:
        this = update(publications).where(_is_leased(publication_id, owner))
        await connection.execute(this.values(**values, changed_at=now, free_at=None, owner=None))


async def release(database: Database, owner: str, publication_id: str, now: datetime) -> None:
    """Return a publication to the queue, for another worker. Raises StoreUnavailable."""
    values = {"state": "queued", "detail": "waiting for a gateway", "owner": None, "free_at": now, "changed_at": now}
    async with database.transaction() as connection:
        await connection.execute(update(publications).where(_is_leased(publication_id, owner)).values(**values))


async def _forget_oldest(connection: AsyncConnection) -> None:
    """Delete the oldest publications that are over, beyond the MAX_KEPT newest."""
    row = publications.c
    over = select(row.publication_id).where(row.free_at.is_(None)).order_by(row.publication_id.desc())
    oldest = over.offset(MAX_KEPT).limit(MAX_KEPT)
    ids = list((await connection.execute(oldest)).scalars())
    if ids:
        await connection.execute(delete(publications).where(row.publication_id.in_(ids)))


async def _find(connection: AsyncConnection, publication_id: str) -> Publication | None:
    query = select(*_COLUMNS).where(publications.c.publication_id == publication_id)
    row = (await connection.execute(query)).mappings().one_or_none()
    return None if row is None else _publication(row)


def _is_leased(publication_id: str, owner: str) -> ColumnElement[bool]:
    return (publications.c.publication_id == publication_id) & (publications.c.owner == owner)


def _publication(row: RowMapping) -> Publication:
    prices = None if row["prices"] is None else msgspec.json.decode(row["prices"], type=Prices)
    return Publication(**{**row, "prices": prices})
