"""Sums over usage entries by minute, hour and day.

A call is counted in exactly one row of `usage_sums`: its entry and its part of the sum are written in one transaction,
and folding minutes into hours, or hours into days, moves counts between rows in one transaction. Sums can therefore be
folded at any time, while late entries still arrive.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple

from sqlalchemy import BigInteger, ColumnElement, cast, delete, func, literal, select
from sqlalchemy.ext.asyncio import AsyncConnection

from storage.database import Database, insert_adding, utc_floor, uuid7_floor
from tenants.tables import usage_entries, usage_sums

Period = Literal["minute", "hour", "day"]
Group = Literal["model", "day", "hour", "minute", "token", "pop", "status", "task", "account"]

SUMS = (
    "num_calls",
    "num_useful",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "micro_neurons",
    "device_us",
    "bytes_in",
    "bytes_out",
    "num_tool_calls",
    "num_attempts",
)
_KEYS = ("account_id", "starts_at", "period", "model", "api_token_id", "task", "pop", "status")
_SAME = ("account_id", "model", "api_token_id", "task", "pop", "status")  # in an entry and in a sum
_COPIED_SUMS = tuple(name for name in SUMS if name not in ("num_calls", "num_useful", "num_attempts"))
COUNTED = (*_SAME, "started_at", "is_useful", "num_retried", "attempts", *_COPIED_SUMS)
"""Columns of an entry from which its part of a sum is computed."""
_NUM_FACTS = len(_SAME) + 4
_COLUMNS = {"token": "api_token_id", "account": "account_id"}


@dataclass(frozen=True)
class UsageTotal:
    """Totals of a group of calls, named by `key`: a model, a UTC day or hour, an API token … `num_useful` are
    responses that finished within their deadline and in the requested format, and were not requested again.
    `num_attempts` counts nodes tried.
    """

    key: str
    num_calls: int
    num_useful: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    micro_neurons: int
    device_us: int
    bytes_in: int
    bytes_out: int
    num_tool_calls: int
    num_attempts: int

    @property
    def micro_neurons_per_useful(self) -> int | None:
        """Return the cost per useful response, including the cost of the others; None if there are none."""
        return round(self.micro_neurons / self.num_useful) if self.num_useful > 0 else None


class StepTotal(NamedTuple):
    """Totals of the calls that started within one step and ended with `status`."""

    at: datetime
    status: str
    num_calls: int
    num_useful: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    micro_neurons: int


STEP_SUMS = StepTotal._fields[2:]


@dataclass(frozen=True)
class Filter:
    """A filter for calls: each field given must be equal. `account_id` None matches every account."""

    account_id: str | None
    api_token_id: str | None = None
    model: str | None = None
    task: str | None = None
    pop: str | None = None
    status: str | None = None

    def clauses(self, table: Any) -> list[ColumnElement[bool]]:
        """Return the filter as conditions on a table with these columns."""
        names = ("account_id", "api_token_id", "model", "task", "pop", "status")
        return [table.c[name] == value for name in names if (value := getattr(self, name)) is not None]


class Share(NamedTuple):
    """An entry's part of a sum: the key of the sum, and what to add to each of SUMS."""

    key: tuple[Any, ...]
    numbers: tuple[int, ...]


def share_of(entry: tuple[Any, ...]) -> Share:
    """Return an entry's part, from its columns COUNTED."""
    *same, started_at, is_useful, num_retried, attempts = entry[:_NUM_FACTS]
    key = (*same, started_at.astimezone(UTC).replace(second=0, microsecond=0))
    return Share(key, (1, int(is_useful) - num_retried, *entry[_NUM_FACTS:], attempts))


async def add(connection: AsyncConnection, dialect: str, shares: Iterable[Share]) -> None:
    """Add new entries to the sums, within the caller's transaction."""
    found: dict[tuple[Any, ...], list[tuple[int, ...]]] = {}
    for key, numbers in shares:
        found.setdefault(key, []).append(numbers)
    if found:
        # Sorted, so that concurrent transactions lock rows in one order and never deadlock.
        rows = [
            dict(zip((*_SAME, "starts_at", *SUMS), (*key, *map(sum, zip(*found[key], strict=True))), strict=True))
            | {"period": "minute"}
            for key in sorted(found, key=repr)
        ]
        await connection.execute(insert_adding(usage_sums, dialect, sums=SUMS), rows)


async def fold(database: Database, period: Literal["minute", "hour"], before: datetime) -> int:
    """Fold the sums of `period` that start before `before` into the next longer period. Returns how many rows were
    folded."""
    num_gone = 0
    while True:
        first = select(func.min(usage_sums.c.starts_at)).where(
            usage_sums.c.period == period, usage_sums.c.starts_at < before
        )
        async with database.connection() as connection:
            starts_at = (await connection.execute(first)).scalar_one_or_none()
        if starts_at is None:
            return num_gone
        num_gone += await _fold_one(database, period, starts_at)


async def _fold_one(database: Database, period: Literal["minute", "hour"], starts_at: datetime) -> int:
    """Fold all sums that start at one time: few enough rows for one transaction."""
    longer: Period = "hour" if period == "minute" else "day"
    are_these = (usage_sums.c.period == period) & (usage_sums.c.starts_at == starts_at)
    async with database.transaction() as connection:
        if database.dialect == "postgresql":  # adds exactly the deleted rows, even with concurrent writers
            gone = delete(usage_sums).where(are_these).returning(*usage_sums.c).cte("gone")
            result = await connection.execute(_insert_longer(database.dialect, gone, longer))
            return result.rowcount
        source = select(usage_sums).where(are_these).subquery()
        await connection.execute(_insert_longer(database.dialect, source, longer))
        return (await connection.execute(delete(usage_sums).where(are_these))).rowcount


def _insert_longer(dialect: str, source: Any, longer: Period) -> Any:
    keys: dict[str, Any] = {name: source.c[name] for name in _KEYS}
    floor = utc_floor(source.c.starts_at, longer)
    keys |= {"starts_at": floor, "period": literal(longer)}
    sums = [cast(func.sum(source.c[name]), BigInteger).label(name) for name in SUMS]
    # The WHERE keeps SQLite from reading ON CONFLICT as part of a join.
    grouped = select(*(keys[name].label(name) for name in _KEYS), *sums).where(literal(1) == 1)
    grouped = grouped.group_by(*(source.c[name] for name in _SAME), floor)
    return insert_adding(usage_sums, dialect, sums=SUMS, source=grouped)


async def total(
    database: Database, which: Filter, since: datetime, until: datetime, by: Group = "model"
) -> list[UsageTotal]:
    """Return totals of the periods that start in [since, until), one for each value of `by`, in its order."""
    table = usage_sums.c
    group: ColumnElement[Any]
    if by == "day" or by == "hour":
        group = utc_floor(table.starts_at, by)
    else:
        group = table.starts_at if by == "minute" else table[_COLUMNS.get(by, by)]
    sums = [cast(func.sum(table[name]), BigInteger).label(name) for name in SUMS]
    query = (
        select(group.label("key"), *sums)
        .where(*which.clauses(usage_sums), table.starts_at >= since, table.starts_at < until)
        .group_by(group)
        .order_by(group)
    )
    async with database.connection() as connection:
        rows: Sequence[Mapping[str, Any]] = (await connection.execute(query)).mappings().all()  # type: ignore[assignment]
    return [UsageTotal(**(dict(row) | {"key": _text(row["key"], by)})) for row in rows]


async def totals_by_step(
    database: Database, which: Filter, since: datetime, until: datetime, step: Period
) -> list[StepTotal]:
    """Return totals of the periods that start in [since, until), one for each step and status, oldest first. A step
    that is finer than the stored periods has the whole period's total at its start."""
    table = usage_sums.c
    start: ColumnElement[Any] = table.starts_at if step == "minute" else utc_floor(table.starts_at, step)
    sums = [cast(func.sum(table[name]), BigInteger).label(name) for name in STEP_SUMS]
    query = (
        select(start.label("at"), table.status, *sums)
        .where(*which.clauses(usage_sums), table.starts_at >= since, table.starts_at < until)
        .group_by(start, table.status)
        .order_by(start)
    )
    async with database.connection() as connection:
        return [StepTotal(*row) for row in await connection.execute(query)]


async def micro_neurons(
    database: Database, account_ids: Sequence[str], since: datetime, until: datetime
) -> dict[tuple[str, str], int]:
    """Return micro-neurons of the span by (account id, API token id)."""
    table = usage_sums.c
    query = (
        select(table.account_id, table.api_token_id, cast(func.sum(table.micro_neurons), BigInteger))
        .where(table.account_id.in_(account_ids), table.starts_at >= since, table.starts_at < until)
        .group_by(table.account_id, table.api_token_id)
    )
    async with database.connection() as connection:
        return {(row[0], row[1]): row[2] for row in await connection.execute(query)}


async def forget_entries(database: Database, before: datetime, at_most: int = 5000) -> int:
    """Delete up to `at_most` entries that started before `before`; their sums stay. Returns how many; 0 when done.
    Finds entries by their ids, which begin with the time; entries with other ids stay."""
    is_old = usage_entries.c.request_id < uuid7_floor(before)
    oldest = (
        select(usage_entries.c.request_id)
        .where(is_old, usage_entries.c.started_at < before)
        .order_by(usage_entries.c.request_id)
        .limit(at_most)
    )
    async with database.transaction() as connection:
        gone = delete(usage_entries).where(usage_entries.c.request_id.in_(oldest.scalar_subquery()))
        return (await connection.execute(gone)).rowcount


def month_of(day: datetime) -> tuple[datetime, datetime]:
    """Return the start of the UTC month and of the next one."""
    first = day.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return first, (first + timedelta(days=32)).replace(day=1)


def _text(key: Any, by: Group) -> str:
    if not isinstance(key, datetime):
        return str(key)
    return key.astimezone(UTC).strftime("%Y-%m-%d" if by == "day" else "%Y-%m-%dT%H:%MZ")
