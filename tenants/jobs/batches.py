"""Batches in the database: queued requests, the worker that leases each chunk, and results until they expire.

A worker leases a chunk and renews the lease; after the lease expires, another worker takes the requests without a
result. A result, its usage entry and the count of what is left are written in one transaction, by the lease's owner
only: each request has exactly one result and one usage entry. Contents are sealed bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from sqlalchemy import ColumnElement, and_, case, delete, exists, func, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from storage.database import Database, insert_new
from storage.errors import StoreError
from tenants.tables import accounts, batch_chunks, batch_results, batch_shares, batch_webhooks, batches
from tenants.usage.usage_entries import UsageEntry, write_within

MAX_EXPIRED = 50  # batches deleted in one transaction

ChunkKey = tuple[str, int]
"""A chunk: its batch id and the number of its first request."""

Kind = Literal["run", "response"]
"""The kind of the requests of a batch: bodies of `ai/run`, or one body of `responses`."""

State = Literal["queued", "running", "cancelling", "cancelled", "finished"]


class QueueFull(StoreError):
    """The account has the maximum number of waiting requests."""


@dataclass(frozen=True)
class NewChunk:
    """Requests that one worker takes together. `cost` is an estimate of their tokens."""

    first: int
    num_requests: int
    cost: int
    requests: bytes


@dataclass(frozen=True)
class NewBatch:
    """A batch to queue. `webhook` is the sealed webhook target, or None."""

    batch_id: str
    account_id: str
    api_token_id: str
    requested_model: str
    model: str
    created_at: datetime
    chunks: Sequence[NewChunk]
    webhook: bytes | None = None
    kind: Kind = "run"

    @property
    def num_requests(self) -> int:
        return sum(chunk.num_requests for chunk in self.chunks)


@dataclass(frozen=True)
class LeasedChunk:
    """A chunk that a worker has leased. `finished` are the numbers of requests that already have a result;
    `num_losses` counts the owners whose lease expired."""

    key: ChunkKey
    account_id: str
    api_token_id: str
    requested_model: str
    created_at: datetime
    num_requests: int
    num_losses: int
    requests: bytes
    finished: frozenset[int]
    is_account_blocked: bool
    kind: Kind = "run"
    is_cancelled: bool = False


@dataclass(frozen=True)
class Completion:
    """The sealed result of one request, with its usage entries. `is_failed`: the result is an error."""

    number: int
    result: bytes
    prompt_tokens: int = 0
    completion_tokens: int = 0
    entries: tuple[UsageEntry, ...] = ()
    is_failed: bool = False


@dataclass(frozen=True)
class BatchState:
    """Status of a batch."""

    requested_model: str
    model: str
    num_requests: int
    is_started: bool
    is_finished: bool
    is_cancelled: bool = False


@dataclass(frozen=True)
class BatchRecord:
    """A batch as its account sees it. `num_done` counts requests with a result, `num_failed` those whose result is an
    error."""

    batch_id: str
    api_token_id: str
    requested_model: str
    model: str
    kind: Kind
    num_requests: int
    num_done: int
    num_failed: int
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    expires_at: datetime | None
    cancelled_at: datetime | None

    @property
    def state(self) -> State:
        if self.finished_at is not None:
            return "cancelled" if self.cancelled_at is not None and self.num_failed else "finished"
        if self.cancelled_at is not None:
            return "cancelling"
        return "queued" if self.started_at is None else "running"


async def submit(database: Database, batch: NewBatch, *, max_waiting: int) -> None:
    """Queue a batch; a batch that exists already is left unchanged. Raises QueueFull if the account would have more
    than `max_waiting` waiting requests; StoreUnavailable."""
    fields = (
        "batch_id",
        "account_id",
        "api_token_id",
        "requested_model",
        "model",
        "created_at",
        "num_requests",
        "kind",
    )
    row = {name: getattr(batch, name) for name in fields} | {"num_done": 0}
    async with database.transaction() as connection:
        num_waiting = await _enter_queue(connection, batch.account_id)
        new = insert_new(batches, database.dialect, key="batch_id").returning(batches.c.batch_id)
        if (await connection.execute(new, [row])).first() is None:
            return
        if num_waiting + batch.num_requests > max_waiting:
            raise QueueFull(f"{num_waiting} requests wait")
        common = {"batch_id": batch.batch_id, "account_id": batch.account_id, "free_at": batch.created_at}
        common |= {"num_done": 0, "num_losses": 0}
        rows = [
            common | {"first": c.first, "num_requests": c.num_requests, "cost": c.cost, "requests": c.requests}
            for c in batch.chunks
        ]
        await connection.execute(insert(batch_chunks), rows)
        if batch.webhook is not None:
            hook = {"batch_id": batch.batch_id, "target": batch.webhook, "num_tries": 0, "next_at": batch.created_at}
            await connection.execute(insert(batch_webhooks).values(hook))


async def _enter_queue(connection: AsyncConnection, account_id: str) -> int:
    """Return the number of waiting requests of the account. If there are none, raise the account's share to that of
    the busy accounts: an idle account saves up no priority."""
    share = batch_shares.c
    await connection.execute(
        insert_new(batch_shares, connection.dialect.name, key="account_id"), [{"account_id": account_id, "taken": 0}]
    )
    own = select(share.taken).where(share.account_id == account_id).with_for_update()
    tokens_served: int = (await connection.execute(own)).scalar_one()
    chunk = batch_chunks.c
    left = select(func.coalesce(func.sum(chunk.num_requests - chunk.num_done), 0))
    query = left.where(chunk.account_id == account_id, chunk.free_at.is_not(None))
    num_waiting = int((await connection.execute(query)).scalar_one())
    if num_waiting == 0:
        busy = select(chunk.account_id).where(chunk.free_at.is_not(None))
        floor = (await connection.execute(select(func.min(share.taken)).where(share.account_id.in_(busy)))).scalar_one()
        if floor is not None and floor > tokens_served:
            await connection.execute(update(batch_shares).where(share.account_id == account_id).values(taken=floor))
    return num_waiting


async def has_work(database: Database, now: datetime) -> bool:
    """Return True if `take` would find a chunk. Raises StoreUnavailable."""
    query = select(batch_chunks.c.batch_id).where(batch_chunks.c.free_at <= now).limit(1)
    async with database.connection() as connection:
        return (await connection.execute(query)).first() is not None


async def take(
    database: Database, owner: str, now: datetime, lease_s: float, excluded: Collection[str] = ()
) -> LeasedChunk | None:
    """Lease the oldest available chunk of the account that has been served the fewest tokens, or return None. Leaves
    out the accounts in `excluded`. Raises StoreUnavailable."""
    chunk, share = batch_chunks.c, batch_shares.c
    behind = select(share.account_id).join(batch_chunks, chunk.account_id == share.account_id)
    behind = (
        behind.where(chunk.free_at <= now, share.account_id.not_in(excluded))
        .order_by(share.taken, share.account_id)
        .limit(1)
    )
    async with database.transaction() as connection:
        account_id = (await connection.execute(behind)).scalar_one_or_none()
        if account_id is None:
            return None
        oldest = select(batch_chunks).where(chunk.account_id == account_id, chunk.free_at <= now)
        oldest = oldest.order_by(chunk.batch_id, chunk.first).limit(1).with_for_update(skip_locked=True)
        row = (await connection.execute(oldest)).mappings().first()
        if row is None:
            return None
        is_loss = int(row["owner"] is not None)
        lease = {"owner": owner, "free_at": now + timedelta(seconds=lease_s), "num_losses": chunk.num_losses + is_loss}
        await connection.execute(update(batch_chunks).where(_is(row["batch_id"], row["first"])).values(**lease))
        if not is_loss:
            await _charge(connection, row, 1)
        return await _leased(connection, row, row["num_losses"] + is_loss, now)


async def _charge(connection: AsyncConnection, row: Mapping[Any, Any], sign: int) -> None:
    """Add the cost of the unfinished part of a chunk to the account's share; `sign` -1 subtracts it."""
    cost = row["cost"] * (row["num_requests"] - row["num_done"]) // row["num_requests"]
    share = batch_shares.c
    charged = update(batch_shares).where(share.account_id == row["account_id"])
    await connection.execute(charged.values(taken=share.taken + sign * cost))


async def _leased(connection: AsyncConnection, row: Mapping[Any, Any], num_losses: int, now: datetime) -> LeasedChunk:
    batch_id, first = row["batch_id"], row["first"]
    start = update(batches).where(batches.c.batch_id == batch_id, batches.c.started_at.is_(None))
    await connection.execute(start.values(started_at=now))
    batch = (await connection.execute(select(batches).where(batches.c.batch_id == batch_id))).mappings().one()
    account = select(accounts.c.status).where(
        accounts.c.account_id == row["account_id"], accounts.c.deleted_at.is_(None)
    )
    done = select(batch_results.c.number).where(batch_results.c.batch_id == batch_id, _within(row))
    return LeasedChunk(
        key=(batch_id, first),
        account_id=row["account_id"],
        api_token_id=batch["api_token_id"],
        requested_model=batch["requested_model"],
        created_at=batch["created_at"],
        num_requests=row["num_requests"],
        num_losses=num_losses,
        requests=row["requests"],
        finished=frozenset((await connection.execute(done)).scalars()),
        is_account_blocked=(await connection.execute(account)).scalar_one_or_none() != "active",
        kind=batch["kind"],
        is_cancelled=batch["cancelled_at"] is not None,
    )


def _within(row: Mapping[Any, Any]) -> ColumnElement[bool]:
    number = batch_results.c.number
    return and_(number >= row["first"], number < row["first"] + row["num_requests"])


async def store_results(
    database: Database,
    owner: str,
    completions: Mapping[ChunkKey, Sequence[Completion]],
    now: datetime,
    *,
    lease_s: float,
    ttl_s: float,
) -> set[ChunkKey]:
    """Write results of chunks that `owner` has leased, with their usage entries, and renew the leases.

    Returns the chunks whose lease the owner has lost; nothing is written for them. Can be repeated after an error with
    an unknown outcome. Raises StoreUnavailable.
    """
    lost = set()
    entries: list[UsageEntry] = []
    async with database.transaction() as connection:
        for key in sorted(completions):
            row = await _owned(connection, owner, key)
            if row is None:
                lost.add(key)
                continue
            new = await _insert_results(connection, key[0], completions[key])
            entries += [
                entry for completion in completions[key] if completion.number in new for entry in completion.entries
            ]
            num_failed = sum(completion.is_failed for completion in completions[key] if completion.number in new)
            await _count(connection, row, len(new), num_failed, now, lease_s=lease_s, ttl_s=ttl_s)
        if entries:
            await write_within(connection, entries)
    return lost


async def _owned(connection: AsyncConnection, owner: str, key: ChunkKey) -> Mapping[Any, Any] | None:
    query = select(batch_chunks).where(_is(*key), batch_chunks.c.owner == owner).with_for_update()
    return (await connection.execute(query)).mappings().first()


async def _insert_results(connection: AsyncConnection, batch_id: str, completions: Sequence[Completion]) -> set[int]:
    """Return the numbers that had no result before."""
    rows = [
        {
            "batch_id": batch_id,
            "number": completion.number,
            "prompt_tokens": completion.prompt_tokens,
            "completion_tokens": completion.completion_tokens,
            "answer": completion.result,
        }
        for completion in completions
    ]
    if not rows:
        return set()
    new = insert_new(batch_results, connection.dialect.name, key=("batch_id", "number"))
    return set((await connection.execute(new.returning(batch_results.c.number), rows)).scalars())


async def _count(
    connection: AsyncConnection,
    row: Mapping[Any, Any],
    num_new: int,
    num_failed: int,
    now: datetime,
    *,
    lease_s: float,
    ttl_s: float,
) -> None:
    """Count finished requests of a chunk and its batch. A finished chunk drops its requests and its owner."""
    batch_id, num_done = row["batch_id"], row["num_done"] + num_new
    values: dict[str, Any] = {"num_done": num_done, "free_at": now + timedelta(seconds=lease_s)}
    if num_done == row["num_requests"]:
        values |= {"free_at": None, "owner": None, "requests": None}
    await connection.execute(update(batch_chunks).where(_is(batch_id, row["first"])).values(**values))
    batch = batches.c
    is_last = batch.num_done + num_new == batch.num_requests
    counted = {
        "num_done": batch.num_done + num_new,
        "num_failed": batch.num_failed + num_failed,
        "finished_at": case((is_last, now), else_=batch.finished_at),
        "expires_at": case((is_last, now + timedelta(seconds=ttl_s)), else_=batch.expires_at),
    }
    if num_new:
        await connection.execute(update(batches).where(batch.batch_id == batch_id).values(**counted))


async def renew(database: Database, owner: str, keys: Iterable[ChunkKey], now: datetime, lease_s: float) -> None:
    """Renew the leases of those chunks that `owner` still has. Raises StoreUnavailable."""
    chunk = batch_chunks.c
    async with database.transaction() as connection:
        for key in sorted(keys):
            own = update(batch_chunks).where(_is(*key), chunk.owner == owner, chunk.free_at.is_not(None))
            await connection.execute(own.values(free_at=now + timedelta(seconds=lease_s)))


async def release(database: Database, owner: str, keys: Iterable[ChunkKey], free_at: datetime) -> None:
    """Release chunks for other workers from `free_at` on, and subtract the cost of unfinished requests from the
    account's share. Raises StoreUnavailable."""
    async with database.transaction() as connection:
        for key in sorted(keys):
            row = await _owned(connection, owner, key)
            if row is not None:
                free = update(batch_chunks).where(_is(*key)).values(owner=None, free_at=free_at)
                await connection.execute(free)
                await _charge(connection, row, -1)


async def find(
    database: Database, account_id: str, batch_id: str, now: datetime, kind: Kind = "run"
) -> BatchState | None:
    """Return the status of the account's batch, or None if the account has no such batch. Raises StoreUnavailable."""
    batch = batches.c
    query = select(batches).where(batch.batch_id == batch_id, batch.account_id == account_id, batch.kind == kind)
    query = query.where(or_(batch.expires_at.is_(None), batch.expires_at > now))
    async with database.connection() as connection:
        row = (await connection.execute(query)).mappings().first()
    if row is None:
        return None
    return BatchState(
        requested_model=row["requested_model"],
        model=row["model"],
        num_requests=row["num_requests"],
        is_started=row["started_at"] is not None,
        is_finished=row["finished_at"] is not None,
        is_cancelled=row["cancelled_at"] is not None,
    )


_RECORD = [batches.c[name] for name in BatchRecord.__dataclass_fields__]


async def list_records(
    database: Database, account_id: str | None, now: datetime, limit: int, *, offset: int = 0
) -> tuple[list[BatchRecord], int]:
    """Return a page of the batches of an account, or of all accounts for None, newest first, and the number of all.
    Raises StoreUnavailable."""
    where = _stored(account_id, now)
    query = select(*_RECORD).where(*where).order_by(batches.c.batch_id.desc()).limit(limit).offset(offset)
    async with database.connection() as connection:
        found = [BatchRecord(**row) for row in (await connection.execute(query)).mappings()]
        total = (await connection.execute(select(func.count()).select_from(batches).where(*where))).scalar_one()
    return found, int(total)


async def find_record(database: Database, account_id: str, batch_id: str, now: datetime) -> BatchRecord | None:
    """Return a batch of the account, or None. Raises StoreUnavailable."""
    query = select(*_RECORD).where(*_stored(account_id, now), batches.c.batch_id == batch_id)
    async with database.connection() as connection:
        row = (await connection.execute(query)).mappings().first()
    return None if row is None else BatchRecord(**row)


def _stored(account_id: str | None, now: datetime) -> tuple[ColumnElement[bool], ...]:
    expires_at = batches.c.expires_at
    is_stored = or_(expires_at.is_(None), expires_at > now)
    return (is_stored,) if account_id is None else (batches.c.account_id == account_id, is_stored)


async def cancel(database: Database, account_id: str, batch_id: str, now: datetime) -> bool:
    """Request cancellation of the account's batch; return False if it is finished or cancelled already, or does not
    exist. Raises StoreUnavailable."""
    batch = batches.c
    this = update(batches).where(batch.batch_id == batch_id, batch.account_id == account_id)
    this = this.where(batch.finished_at.is_(None), batch.cancelled_at.is_(None))
    async with database.transaction() as connection:
        return (await connection.execute(this.values(cancelled_at=now))).rowcount > 0


async def cancelled_among(database: Database, batch_ids: Iterable[str]) -> set[str]:
    """Return those batches whose cancellation was requested. Raises StoreUnavailable."""
    batch = batches.c
    query = select(batch.batch_id).where(batch.batch_id.in_(list(batch_ids)), batch.cancelled_at.is_not(None))
    async with database.connection() as connection:
        return set((await connection.execute(query)).scalars())


async def read_results(database: Database, account_id: str, batch_id: str, first: int, limit: int) -> list[bytes]:
    """Return up to `limit` results of the account's batch, from number `first` on. Raises StoreUnavailable."""
    result = batch_results.c
    query = select(result.answer).where(*_results_of(account_id, batch_id), result.number >= first)
    async with database.connection() as connection:
        return list((await connection.execute(query.order_by(result.number).limit(limit))).scalars())


async def tokens_of(database: Database, account_id: str, batch_id: str) -> tuple[int, int]:
    """Return the prompt and completion tokens of all results of the account's batch. Raises StoreUnavailable."""
    result = batch_results.c
    sums = [func.coalesce(func.sum(column), 0) for column in (result.prompt_tokens, result.completion_tokens)]
    async with database.connection() as connection:
        query = select(*sums).where(*_results_of(account_id, batch_id))
        prompt, completion = (await connection.execute(query)).one()
    return int(prompt), int(completion)


async def expire(database: Database, now: datetime) -> int:
    """Delete up to MAX_EXPIRED expired batches and return their number. Raises StoreUnavailable."""
    over = select(batches.c.batch_id).where(batches.c.expires_at <= now).limit(MAX_EXPIRED)
    async with database.transaction() as connection:
        ids = list((await connection.execute(over)).scalars())
        for table in (batch_webhooks, batch_results, batch_chunks, batches) if ids else ():
            await connection.execute(delete(table).where(table.c.batch_id.in_(ids)))
    return len(ids)


def _results_of(account_id: str, batch_id: str) -> tuple[ColumnElement[bool], ...]:
    """Return the condition that selects a batch's results, if the batch belongs to the account."""
    is_account_s = exists().where(batches.c.batch_id == batch_id, batches.c.account_id == account_id)
    return batch_results.c.batch_id == batch_id, is_account_s


def _is(batch_id: str, first: int) -> ColumnElement[bool]:
    return and_(batch_chunks.c.batch_id == batch_id, batch_chunks.c.first == first)
