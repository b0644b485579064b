"""Usage entries: one row per admitted call, keyed by its request id.

Writing an entry twice has no effect. Its part of the sums (`usage_sums.py`) is written in the same transaction.
Entries carry micro-neurons as priced when the call ended.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import Struct, structs
from sqlalchemy import String, select, tuple_
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from storage.database import Database, insert_replacing, uuid7, uuid7_floor
from storage.many_rows import ManyRows, Row
from tenants.tables import usage_entries, usage_spools
from tenants.usage import usage_sums
from tenants.usage.usage_sums import Filter, Share

T = TypeVar("T")
R = TypeVar("R")


class UsageEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Usage of one call. Times are aware; durations are in milliseconds.

    `status` is the finish reason or the failure's reason, `ttft_ms` the time to the first token (None without output),
    `attempts` the number of nodes tried. `device_us` is the call's share of device time in microseconds; `bytes_in`
    and `bytes_out` are body sizes. A response `is_useful` if it finished within its deadline and in the requested
    format; `num_retried` counts responses, earlier counted as useful, that this call's client requested again.
    `queue_us`, `prefill_us` and `decode_us` are the microseconds that the call waited on its node, then until its
    first token, and then until its last (0 if unknown). `tried_nodes` names the nodes that were tried, comma-separated;
    "" if only `node_id` was.
    """

    request_id: str
    account_id: str
    api_token_id: str
    model: str
    revision: str
    task: str
    pop: str
    node_id: str
    status: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    started_at: datetime
    ttft_ms: float | None
    duration_ms: float
    attempts: int
    micro_neurons: int
    is_stream: bool
    device_us: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    num_tool_calls: int = 0
    num_steps: int = 0
    audio_ms: int = 0
    num_image_tiles: int = 0
    num_retried: int = 0
    is_useful: bool = False
    is_batch: bool = False
    queue_us: int = 0
    prefill_us: int = 0
    decode_us: int = 0
    tried_nodes: str = ""


@dataclass(frozen=True)
class SpoolPosition:
    """A position in a spool: the database has everything before `offset` of `segment`."""

    spool_id: str
    segment: int
    offset: int


class LedgerRolledBack(Exception):
    """The database is behind the position that it confirmed: it was replaced by an older copy."""


@dataclass(frozen=True)
class Latency:
    """Percentiles (50, 95, 99) of the newest calls of one model, in milliseconds. `ttft_ms` is None if no call had
    output."""

    model: str
    num_calls: int
    ttft_ms: tuple[float, float, float] | None
    total_ms: tuple[float, float, float]


@dataclass(frozen=True)
class LatencyOfCalls:
    """Percentiles (50, 95, 99) of a number of calls, in milliseconds. None without calls, `ttft_ms` also without
    output."""

    num_calls: int
    ttft_ms: tuple[float, float, float] | None
    total_ms: tuple[float, float, float] | None


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(UsageEntry)
_FIELDS = UsageEntry.__struct_fields__
_ENTRY_COLUMNS = [usage_entries.c[name] for name in _FIELDS]
_LENGTHS = tuple(
    (at, column.type.length)
    for at, column in enumerate(_ENTRY_COLUMNS)
    if isinstance(column.type, String) and column.type.length
)
_ledger_rows = ManyRows(usage_entries, _FIELDS, key="request_id")
_counted = itemgetter(*map(_FIELDS.index, usage_sums.COUNTED))
_YIELD_EVERY = 32  # items, which take a tenth of a millisecond
PERCENTILES = (50, 95, 99)
_MAX_MEASURED_CALLS = 20_000


def encode(entry: UsageEntry) -> bytes:
    """Encode an entry as a spool record. Raises ValueError if its time has no time zone."""
    if entry.started_at.tzinfo is None:
        raise ValueError("started_at must have a time zone")
    return _encoder.encode(entry)


def decode(record: bytes) -> UsageEntry:
    """Decode a spool record. Raises ValueError (msgspec.ValidationError, msgspec.DecodeError)."""
    return _decoder.decode(record)


async def write(
    database: Database,
    entries: Sequence[UsageEntry],
    position: SpoolPosition | None = None,
    *,
    confirmed: SpoolPosition | None = None,
) -> int:
    """Write entries and their sums in one transaction; return how many were new. Raises StoreUnavailable.

    `position` is the spool position after these entries and is stored with them. Raises LedgerRolledBack, and writes
    nothing, if the stored position is before `confirmed`, the `position` of an earlier call.
    """
    ready = await map_yielding(_ready, entries)
    async with database.transaction() as connection:
        if position is not None:
            await _store_position(connection, database.dialect, position, confirmed)
        return await _put(connection, ready)


async def write_within(connection: AsyncConnection, entries: Sequence[UsageEntry]) -> int:
    """Write entries and their sums within the caller's transaction; return how many were new. The sums' rows stay
    locked until the transaction ends, so call this last."""
    return await _put(connection, list(map(_ready, entries)))


async def map_yielding(make: Callable[[T], R], given: Sequence[T]) -> list[R]:
    """Apply `make` to each item, and yield to the event loop regularly so that calls are not delayed."""
    made: list[R] = []
    for start in range(0, len(given), _YIELD_EVERY):
        if start:
            await asyncio.sleep(0)
        made += map(make, given[start : start + _YIELD_EVERY])
    return made


class _Ready(NamedTuple):
    """An entry ready to be written."""

    row: Row
    share: Share


def _ready(entry: UsageEntry) -> _Ready:
    row = _row(entry)
    return _Ready(row, usage_sums.share_of(_counted(row)))


async def _put(connection: AsyncConnection, ready: Sequence[_Ready]) -> int:
    """Insert entries and their sums; return how many were new."""
    first = {each.row[0]: each for each in reversed(ready)}
    new = await _ledger_rows.insert_new(connection, [each.row for each in first.values()])
    await usage_sums.add(connection, connection.dialect.name, [first[id].share for id in new])
    return len(new)


async def _store_position(
    connection: AsyncConnection, dialect: str, position: SpoolPosition, confirmed: SpoolPosition | None
) -> None:
    """Store the spool position, if the stored one is not before `confirmed`. Raises LedgerRolledBack."""
    if confirmed is not None:
        known = await _read_position(connection, position.spool_id)
        if known is None or (known.segment, known.offset) < (confirmed.segment, confirmed.offset):
            raise LedgerRolledBack
    values = vars(position) | {"moved_at": datetime.now(UTC)}
    await connection.execute(insert_replacing(usage_spools, dialect), [values])


async def find_position(database: Database, spool_id: str) -> SpoolPosition | None:
    """Return the database's position in a spool, or None if it does not know the spool."""
    async with database.connection() as connection:
        return await _read_position(connection, spool_id)


async def _read_position(connection: AsyncConnection, spool_id: str) -> SpoolPosition | None:
    query = select(usage_spools.c.segment, usage_spools.c.offset).where(usage_spools.c.spool_id == spool_id)
    row = (await connection.execute(query)).one_or_none()
    return None if row is None else SpoolPosition(spool_id, row.segment, row.offset)


async def accepts_rows(database: Database) -> bool:
    """Return True if the database accepts a plain entry (inserted and rolled back): then an entry that it rejects is
    itself invalid. Raises StoreUnavailable."""
    texts: Any = dict.fromkeys(
        ("account_id", "api_token_id", "model", "revision", "task", "pop", "node_id", "status"), ""
    )
    tokens: Any = dict.fromkeys(("prompt_tokens", "cached_tokens", "completion_tokens", "micro_neurons", "attempts"), 0)
    times: Any = {"started_at": datetime.now(UTC), "ttft_ms": None, "duration_ms": 0.0}
    try:
        async with database.transaction() as connection:
            await _put(
                connection, [_ready(UsageEntry(request_id=uuid7(), is_stream=False, **texts, **tokens, **times))]
            )
            await connection.rollback()
    except SQLAlchemyError:
        return False
    return True


async def list_recent(
    database: Database,
    which: Filter | str,
    limit: int = 50,
    *,
    before: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    min_duration_ms: float | None = None,
) -> list[UsageEntry]:
    """Return the newest calls of a filter or an account, newest first. `before` is the request id to continue after."""
    which = Filter(which) if isinstance(which, str) else which
    started, id = usage_entries.c.started_at, usage_entries.c.request_id
    query = select(*_ENTRY_COLUMNS).where(*which.clauses(usage_entries))
    if since is not None:
        query = query.where(started >= since)
    if until is not None:
        query = query.where(started < until)
    if min_duration_ms is not None:
        query = query.where(usage_entries.c.duration_ms >= min_duration_ms)
    if before is not None:
        last = select(started).where(id == before).scalar_subquery()
        query = query.where(tuple_(started, id) < tuple_(last, before))
    async with database.connection() as connection:
        rows = (await connection.execute(query.order_by(started.desc(), id.desc()).limit(limit))).mappings()
        return [UsageEntry(**row) for row in rows]


async def find(database: Database, account_id: str, request_id: str) -> UsageEntry | None:
    """Return a call of the account, or None. Raises StoreUnavailable."""
    query = select(*_ENTRY_COLUMNS).where(usage_entries.c.request_id == request_id)
    async with database.connection() as connection:
        row = (await connection.execute(query.where(usage_entries.c.account_id == account_id))).mappings().one_or_none()
    return None if row is None else UsageEntry(**row)


async def entries_between(
    database: Database, which: Filter, since: datetime, until: datetime, *, after: UsageEntry | None, limit: int
) -> list[UsageEntry]:
    """Return the oldest `limit` calls that started in [since, until), oldest first, after the entry `after`."""
    started, id = usage_entries.c.started_at, usage_entries.c.request_id
    query = select(*_ENTRY_COLUMNS).where(*which.clauses(usage_entries), started >= since, started < until)
    if after is not None:
        query = query.where(tuple_(started, id) > tuple_(after.started_at, after.request_id))
    async with database.connection() as connection:
        rows = (await connection.execute(query.order_by(started, id).limit(limit))).mappings()
        return [UsageEntry(**row) for row in rows]


async def latencies(
    database: Database, which: Filter, since: datetime, until: datetime, at_most: int = _MAX_MEASURED_CALLS
) -> list[Latency]:
    """Return latency percentiles per model, by name, over the newest `at_most` calls of the span."""
    started = usage_entries.c.started_at
    query = (
        select(usage_entries.c.model, usage_entries.c.ttft_ms, usage_entries.c.duration_ms)
        .where(*which.clauses(usage_entries), started >= since, started < until)
        .order_by(started.desc())
        .limit(at_most)
    )
    found: dict[str, tuple[list[float], list[float]]] = {}
    async with database.connection() as connection:
        for model, ttft_ms, duration_ms in await connection.execute(query):
            first, total = found.setdefault(model, ([], []))
            total.append(duration_ms)
            if ttft_ms is not None:
                first.append(ttft_ms)
    return [
        Latency(model, len(total), _percentiles(first) if first else None, _percentiles(total))
        for model, (first, total) in sorted(found.items())
    ]


async def newest_latency(
    database: Database, which: Filter, since: datetime, until: datetime, at_most: int
) -> LatencyOfCalls:
    """Return latency percentiles over the newest `at_most` calls of the span, of all models together.

    The calls of all accounts are found by their ids, which begin with the time, because there is no index on the time
    alone. Calls with other ids are not measured then.
    """
    started, id = usage_entries.c.started_at, usage_entries.c.request_id
    query = select(usage_entries.c.ttft_ms, usage_entries.c.duration_ms).where(*which.clauses(usage_entries))
    if which.account_id is None:
        query = query.where(id >= uuid7_floor(since), id < uuid7_floor(until)).order_by(id.desc())
    else:
        query = query.where(started >= since, started < until).order_by(started.desc())
    async with database.connection() as connection:
        rows = (await connection.execute(query.limit(at_most))).all()
    first = [row.ttft_ms for row in rows if row.ttft_ms is not None]
    total = [row.duration_ms for row in rows]
    return LatencyOfCalls(len(rows), _percentiles(first) if first else None, _percentiles(total) if total else None)


def _percentiles(values: list[float]) -> tuple[float, float, float]:
    """Return the PERCENTILES of at least one value, by the nearest-rank method."""
    values.sort()
    p50, p95, p99 = (values[max(0, math.ceil(percent / 100 * len(values)) - 1)] for percent in PERCENTILES)
    return p50, p95, p99


def _row(entry: UsageEntry) -> tuple[Any, ...]:
    """Return an entry as a row. Texts that are too long or contain NUL are shortened, so that the row is never
    rejected."""
    values = list(structs.astuple(entry))
    for at, length in _LENGTHS:
        value = values[at]
        if len(value) > length or "\0" in value:
            values[at] = value.replace("\0", "")[:length]
    return tuple(values)
