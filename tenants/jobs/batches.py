"""Batches in the database: queued requests, which worker has which of them, and their answers until they expire.

A worker holds a chunk by a lease, which it renews; whoever's lease ran out is taken for lost, and another takes what is
not answered yet. An answer, its usage entry and the count of what is left are written in one transaction, and only by
the chunk's owner: so each request has one answer and one entry, whatever dies in between. Contents are sealed bytes;
knows no models and no HTTP.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from sqlalchemy import ColumnElement, and_, case, delete, exists, func, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from storage.database import Database, insert_new
from storage.errors import StoreError
from tenants.tables import accounts, batch_chunks, batch_results, batch_shares, batch_webhooks, batches
from tenants.usage.usage_entries import UsageEntry, write_within

MAX_EXPIRED = 50  # batches let go of in one transaction

ChunkKey = tuple[str, int]
"""A chunk: its batch, and the number of its first request."""

Kind = Literal["run", "response"]
"""What the requests of a batch are: bodies of `ai/run`, or one body of `responses`."""


class QueueFull(StoreError):
    """The account has as many requests waiting as it may have."""


@dataclass(frozen=True)
class NewChunk:
    """Requests that one worker will take together. `cost` is their tokens, guessed."""

    first: int
    num_requests: int
    cost: int
    requests: bytes


@dataclass(frozen=True)
class NewBatch:
    """What is queued. `webhook` says, sealed, where its answers are to be sent; None for nowhere."""

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
    """A chunk that a worker has taken. `answered` are the numbers that need no answer any more; `num_losses` says how
    many owners it has lost."""

    key: ChunkKey
    account_id: str
    api_token_id: str
    requested_model: str
    created_at: datetime
    num_requests: int
    num_losses: int
    requests: bytes
    answered: frozenset[int]
    is_account_blocked: bool
    kind: Kind = "run"
    is_cancelled: bool = False


@dataclass(frozen=True)
class Completion:
    """One request's answer, sealed; without entries where nothing was run for it."""

    number: int
    answer: bytes
    prompt_tokens: int = 0
    completion_tokens: int = 0
    entries: tuple[UsageEntry, ...] = ()


@dataclass(frozen=True)
class BatchState:
    """How a batch stands."""

    requested_model: str
    model: str
    num_requests: int
    is_started: bool
    is_finished: bool
    is_cancelled: bool = False


async def submit(database: Database, batch: NewBatch, *, max_waiting: int) -> None:
    """Queue a batch; one that is there already is left as it is. Raises QueueFull when the account would have more than
    `max_waiting` requests to be answered, StoreUnavailable."""
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
    """How many requests of the account wait. If none, its share is brought to where the busy ones are: who asked for
    nothing has saved up nothing."""
    share = batch_shares.c
    await connection.execute(
        insert_new(batch_shares, connection.dialect.name, key="account_id"), [{"account_id": account_id, "taken": 0}]
    )
    own = select(share.taken).where(share.account_id == account_id).with_for_update()
    taken: int = (await connection.execute(own)).scalar_one()
    chunk = batch_chunks.c
    left = select(func.coalesce(func.sum(chunk.num_requests - chunk.num_done), 0))
    query = left.where(chunk.account_id == account_id, chunk.free_at.is_not(None))
    num_waiting = int((await connection.execute(query)).scalar_one())
    if num_waiting == 0:
        busy = select(chunk.account_id).where(chunk.free_at.is_not(None))
        floor = (await connection.execute(select(func.min(share.taken)).where(share.account_id.in_(busy)))).scalar_one()
        if floor is not None and floor > taken:
            await connection.execute(update(batch_shares).where(share.account_id == account_id).values(taken=floor))
    return num_waiting


async def has_work(database: Database, now: datetime) -> bool:
    """Whether `take` would find something. Raises StoreUnavailable."""
    query = select(batch_chunks.c.batch_id).where(batch_chunks.c.free_at <= now).limit(1)
    async with database.connection() as connection:
        return (await connection.execute(query)).first() is not None


async def take(database: Database, owner: str, now: datetime, lease_s: float) -> LeasedChunk | None:
    """Take the oldest chunk that is free, of the account that has had the fewest tokens taken; None when nothing is
    free. Raises StoreUnavailable."""
    chunk, share = batch_chunks.c, batch_shares.c
    behind = select(share.account_id).join(batch_chunks, chunk.account_id == share.account_id)
    behind = behind.where(chunk.free_at <= now).order_by(share.taken, share.account_id).limit(1)
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
        taken = {"owner": owner, "free_at": now + timedelta(seconds=lease_s), "num_losses": chunk.num_losses + is_loss}
        await connection.execute(update(batch_chunks).where(_is(row["batch_id"], row["first"])).values(**taken))
        if not is_loss:
            await _charge(connection, row, 1)
        return await _leased(connection, row, row["num_losses"] + is_loss, now)


async def _charge(connection: AsyncConnection, row: Mapping[Any, Any], sign: int) -> None:
    """Charge an account's share for what is left of a chunk, or with -1 for `sign` charge it back."""
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
        answered=frozenset((await connection.execute(done)).scalars()),
        is_account_blocked=(await connection.execute(account)).scalar_one_or_none() != "active",
        kind=batch["kind"],
        is_cancelled=batch["cancelled_at"] is not None,
    )


def _within(row: Mapping[Any, Any]) -> ColumnElement[bool]:
    number = batch_results.c.number
    return and_(number >= row["first"], number < row["first"] + row["num_requests"])


async def answer(
    database: Database,
    owner: str,
    answered: Mapping[ChunkKey, Sequence[Completion]],
    now: datetime,
    *,
    lease_s: float,
    ttl_s: float,
) -> set[ChunkKey]:
    """Write answers to requests of chunks that `owner` has, with their usage entries; the leases of those chunks begin
    anew. Returns the chunks that are not the owner's any more: nothing was written of them. Doing it again, after an
    error that left open whether it was done, does nothing twice. Raises StoreUnavailable."""
    lost = set()
    entries: list[UsageEntry] = []
    async with database.transaction() as connection:
        for key in sorted(answered):
            row = await _owned(connection, owner, key)
            if row is None:
                lost.add(key)
                continue
            new = await _write_answers(connection, key[0], answered[key])
            entries += [entry for one in answered[key] if one.number in new for entry in one.entries]
            await _count(connection, row, len(new), now, lease_s=lease_s, ttl_s=ttl_s)
        if entries:
            await write_within(connection, entries)
    return lost


async def _owned(connection: AsyncConnection, owner: str, key: ChunkKey) -> Mapping[Any, Any] | None:
    query = select(batch_chunks).where(_is(*key), batch_chunks.c.owner == owner).with_for_update()
    return (await connection.execute(query)).mappings().first()


async def _write_answers(connection: AsyncConnection, batch_id: str, answered: Sequence[Completion]) -> set[int]:
    """Returns the numbers that had none before."""
    rows = [
        {
            "batch_id": batch_id,
            "number": one.number,
            "prompt_tokens": one.prompt_tokens,
            "completion_tokens": one.completion_tokens,
            "answer": one.answer,
        }
        for one in answered
    ]
    if not rows:
        return set()
    new = insert_new(batch_results, connection.dialect.name, key=("batch_id", "number"))
    return set((await connection.execute(new.returning(batch_results.c.number), rows)).scalars())


async def _count(
    connection: AsyncConnection, row: Mapping[Any, Any], num_new: int, now: datetime, *, lease_s: float, ttl_s: float
) -> None:
    """Count what is done of a chunk and of its batch. What is done needs no requests, nor an owner, any more."""
    batch_id, num_done = row["batch_id"], row["num_done"] + num_new
    values: dict[str, Any] = {"num_done": num_done, "free_at": now + timedelta(seconds=lease_s)}
    if num_done == row["num_requests"]:
        values |= {"free_at": None, "owner": None, "requests": None}
    await connection.execute(update(batch_chunks).where(_is(batch_id, row["first"])).values(**values))
    batch = batches.c
    is_last = batch.num_done + num_new == batch.num_requests
    counted = {
        "num_done": batch.num_done + num_new,
        "finished_at": case((is_last, now), else_=batch.finished_at),
        "expires_at": case((is_last, now + timedelta(seconds=ttl_s)), else_=batch.expires_at),
    }
    if num_new:
        await connection.execute(update(batches).where(batch.batch_id == batch_id).values(**counted))


async def renew(database: Database, owner: str, keys: Iterable[ChunkKey], now: datetime, lease_s: float) -> None:
    """The leases of these chunks begin anew, as far as `owner` has them. Raises StoreUnavailable."""
    chunk = batch_chunks.c
    async with database.transaction() as connection:
        for key in sorted(keys):
            own = update(batch_chunks).where(_is(*key), chunk.owner == owner, chunk.free_at.is_not(None))
            await connection.execute(own.values(free_at=now + timedelta(seconds=lease_s)))


async def release(database: Database, owner: str, keys: Iterable[ChunkKey], free_at: datetime) -> None:
    """Leave chunks to whoever takes them next, from `free_at` on; the account's share is charged back for what was not
    done. Raises StoreUnavailable."""
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
    """How a batch of the account stands; None for one that is not kept. Raises StoreUnavailable."""
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


async def cancel(database: Database, account_id: str, batch_id: str, now: datetime) -> None:
    """Ask for the end of a batch of the account, unless it is finished. Raises StoreUnavailable."""
    batch = batches.c
    this = update(batches).where(batch.batch_id == batch_id, batch.account_id == account_id)
    this = this.where(batch.finished_at.is_(None), batch.cancelled_at.is_(None))
    async with database.transaction() as connection:
        await connection.execute(this.values(cancelled_at=now))


async def cancelled_among(database: Database, batch_ids: Iterable[str]) -> set[str]:
    """Those of which the end was asked for. Raises StoreUnavailable."""
    batch = batches.c
    query = select(batch.batch_id).where(batch.batch_id.in_(list(batch_ids)), batch.cancelled_at.is_not(None))
    async with database.connection() as connection:
        return set((await connection.execute(query)).scalars())


async def answers(database: Database, account_id: str, batch_id: str, first: int, limit: int) -> list[bytes]:
    """The answers of the account's batch from number `first` on, at most `limit` of them. Raises StoreUnavailable."""
    result = batch_results.c
    query = select(result.answer).where(*_results_of(account_id, batch_id), result.number >= first)
    async with database.connection() as connection:
        return list((await connection.execute(query.order_by(result.number).limit(limit))).scalars())


async def tokens_of(database: Database, account_id: str, batch_id: str) -> tuple[int, int]:
    """Prompt and completion tokens of all answers of the account's batch. Raises StoreUnavailable."""
    result = batch_results.c
    sums = [func.coalesce(func.sum(column), 0) for column in (result.prompt_tokens, result.completion_tokens)]
    async with database.connection() as connection:
        query = select(*sums).where(*_results_of(account_id, batch_id))
        prompt, completion = (await connection.execute(query)).one()
    return int(prompt), int(completion)


async def expire(database: Database, now: datetime) -> int:
    """Let go of batches whose time is over, some at a time; returns how many. Raises StoreUnavailable."""
    over = select(batches.c.batch_id).where(batches.c.expires_at <= now).limit(MAX_EXPIRED)
    async with database.transaction() as connection:
        ids = list((await connection.execute(over)).scalars())
        for table in (batch_webhooks, batch_results, batch_chunks, batches) if ids else ():
            await connection.execute(delete(table).where(table.c.batch_id.in_(ids)))
    return len(ids)


def _results_of(account_id: str, batch_id: str) -> tuple[ColumnElement[bool], ...]:
    """A batch's answers name their batch alone, and the batch its account."""
    is_account_s = exists().where(batches.c.batch_id == batch_id, batches.c.account_id == account_id)
    return batch_results.c.batch_id == batch_id, is_account_s


def _is(batch_id: str, first: int) -> ColumnElement[bool]:
    return and_(batch_chunks.c.batch_id == batch_id, batch_chunks.c.first == first)
