"""What calls consumed: one entry per admitted call, keyed by its request id, and sums over them.

Writing an entry twice is writing it once. Prices are someone else's: an entry carries micro-neurons as they were
reckoned when the call ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
from msgspec import Struct
from sqlalchemy import BigInteger, ColumnElement, String, cast, func, insert, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from storage.database import Database, insert_new, utc_day, uuid7
from tenants.tables import usage_entries

MAX_ROWS_PER_STATEMENT = 500


class UsageEntry(Struct, frozen=True, kw_only=True):
    """One call. `status` is how it ended (`stop`, `length`, or a failure's reason), `ttft_ms` the time to the first
    output if there was any, `attempts` how many nodes were tried. Times are aware; durations in milliseconds."""

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


@dataclass(frozen=True)
class UsageTotal:
    """The sum over some calls: those of one model, one UTC day or one API token, named by `key`."""

    key: str
    num_calls: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    micro_neurons: int


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(UsageEntry)
_FIELDS = UsageEntry.__struct_fields__
_LENGTHS = {
    column.name: column.type.length
    for column in usage_entries.c
    if isinstance(column.type, String) and column.type.length
}
_GROUPS: dict[str, ColumnElement[str]] = {
    "model": usage_entries.c.model,
    "day": utc_day(usage_entries.c.started_at),
    "token": usage_entries.c.api_token_id,
}
_SUMS = ("prompt_tokens", "cached_tokens", "completion_tokens", "micro_neurons")


def encode(entry: UsageEntry) -> bytes:
    """An entry as one record of the spool. Raises ValueError when its time has no zone."""
    if entry.started_at.tzinfo is None:
        raise ValueError("a usage entry's time must carry its zone")
    return _encoder.encode(entry)


def decode(record: bytes) -> UsageEntry:
    """Raises ValueError (msgspec.ValidationError, msgspec.DecodeError) for what is no entry."""
    return _decoder.decode(record)


async def write(database: Database, entries: Sequence[UsageEntry]) -> int:
    """Put entries into the ledger; returns how many were new. All of them, or none when it raises StoreUnavailable."""
    async with database.transaction() as connection:
        return await write_within(connection, entries)


async def write_within(connection: AsyncConnection, entries: Sequence[UsageEntry]) -> int:
    """Put entries into the ledger as part of the caller's transaction; returns how many were new."""
    rows = [_row(entry) for entry in entries]
    statement = insert_new(usage_entries, connection.dialect.name, key="request_id").returning(
        usage_entries.c.request_id
    )
    num_new = 0
    for start in range(0, len(rows), MAX_ROWS_PER_STATEMENT):
        chunk = rows[start : start + MAX_ROWS_PER_STATEMENT]
        num_new += len((await connection.execute(statement, chunk)).all())
    return num_new


async def takes_rows(database: Database) -> bool:
    """Whether the ledger takes a plain entry, tried and undone: if it does, an entry that it refuses is at fault
    itself. Raises StoreUnavailable."""
    text = dict.fromkeys(("account_id", "api_token_id", "model", "revision", "task", "pop", "node_id", "status"), "")
    numbers = dict.fromkeys((*_SUMS, "duration_ms", "attempts"), 0)
    plain = {"request_id": uuid7(), "started_at": datetime.now(UTC), "ttft_ms": None, "is_stream": False}
    try:
        async with database.transaction() as connection:
            await connection.execute(insert(usage_entries).values(**text, **numbers, **plain))
            await connection.rollback()
    except SQLAlchemyError:
        return False
    return True


async def total(
    database: Database,
    account_id: str,
    since: datetime,
    until: datetime,
    by: Literal["model", "day", "token"] = "model",
) -> list[UsageTotal]:
    """Sums over the account's calls begun from `since` to before `until`, one per model, day or API token, by key."""
    group = _GROUPS[by]
    sums = [cast(func.sum(usage_entries.c[name]), BigInteger).label(name) for name in _SUMS]
    table = usage_entries.c
    query = (
        select(group.label("key"), func.count().label("num_calls"), *sums)
        .where(table.account_id == account_id, table.started_at >= since, table.started_at < until)
        .group_by(group)
        .order_by(group)
    )
    async with database.connection() as connection:
        return [UsageTotal(**row) for row in (await connection.execute(query)).mappings()]


async def list_recent(database: Database, account_id: str, limit: int = 50) -> list[UsageEntry]:
    """The account's newest calls, newest first."""
    newest = usage_entries.c.started_at.desc(), usage_entries.c.request_id.desc()
    query = select(usage_entries).where(usage_entries.c.account_id == account_id).order_by(*newest).limit(limit)
    async with database.connection() as connection:
        return [UsageEntry(**row) for row in (await connection.execute(query)).mappings()]


def _row(entry: UsageEntry) -> dict[str, Any]:
    """A row of the ledger. A name that is too long or that a database cannot hold loses characters, never the row."""
    row = {name: getattr(entry, name) for name in _FIELDS}
    for name, length in _LENGTHS.items():
        row[name] = row[name].replace("\0", "")[:length]
    return row
