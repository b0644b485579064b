"""Measure usage queries in a ledger of ten million calls on Postgres.

    python -m bench.usage_ledger --rows 10000000

Fills a database with a month of calls of 1,000 accounts as the gateway would have written it (one entry per call,
minute sums for the last day, hour sums before). Times the queries for one account: 30 days by day (goal: 50 ms), by
model, by hour, newest calls, latencies; the day of 200 accounts for reconciliation; and the write rate into the full
ledger. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
from sqlalchemy import text

from storage.database import Database, uuid7
from storage.migrate import migrate
from tenants.usage import usage_entries as usage
from tenants.usage import usage_sums
from tenants.usage.usage_entries import UsageEntry
from tenants.usage.usage_sums import Filter
from tests.postgres_server import PostgresServer

NUM_ACCOUNTS = 1000
DAYS = 30

# Calls are evenly distributed over the month; one account in a hundred makes half of them. Ids start with their time.
_FILL = """
INSERT INTO usage_entries (request_id, account_id, api_token_id, model, revision, task, pop, node_id, status,
    prompt_tokens, cached_tokens, completion_tokens, started_at, ttft_ms, duration_ms, attempts, micro_neurons,
    is_stream, device_us, bytes_in, bytes_out, is_useful)
SELECT lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || lpad(to_hex(n), 24, '0'),
    lpad(to_hex(account), 32, '0'), lpad(to_hex(account * 2 + n % 2), 32, '0'), '@cf/bench/m' || n % 3, 'r',
    'text-generation', 'pop' || account % 4, 'n', CASE WHEN n % 50 = 0 THEN 'timeout' ELSE 'stop' END,
    900, 300, 120, at, 80 + n % 400, 900 + n % 3000, 1, 250000, true, 35000, 3600, 480, n % 50 <> 0
FROM (
    SELECT n, (CASE WHEN n % 2 = 0 THEN (n / 2 * 7919) % 10 ELSE (n * 7919) % {accounts} END)::int AS account,
        $1::timestamptz + ($2::timestamptz - $1::timestamptz) * (n::float8 / {rows}) AS at
    FROM generate_series({first}::bigint, {last}::bigint) AS n
) AS calls
"""
_SUM = """
INSERT INTO usage_sums SELECT account_id, date_trunc('{unit}', started_at, 'UTC'), '{unit}', model, api_token_id, task,
    pop, status, count(*), sum(CASE WHEN is_useful THEN 1 ELSE 0 END), sum(prompt_tokens), sum(cached_tokens),
    sum(completion_tokens), sum(micro_neurons), sum(device_us), sum(bytes_in), sum(bytes_out), sum(num_tool_calls),
    sum(attempts)
FROM usage_entries WHERE started_at >= $1 AND started_at < $2 GROUP BY 1, 2, 4, 5, 6, 7, 8
"""


async def fill(url: str, num_rows: int, since: datetime, until: datetime) -> float:
    """Fill the ledger and return the seconds it took."""
    started_s = time.perf_counter()
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(
            "SET synchronous_commit = off; SET maintenance_work_mem = '512MB'; SET work_mem = '256MB'"
        )
        await connection.execute("ALTER TABLE usage_entries SET UNLOGGED")
        await connection.execute("ALTER TABLE usage_entries DROP CONSTRAINT pk_usage_entries")
        await connection.execute("DROP INDEX ix_usage_entries_account_id_started_at")
        step = 1_000_000
        for first in range(0, num_rows, step):
            last = min(first + step, num_rows) - 1
            statement = _FILL.format(rows=num_rows, first=first, last=last, accounts=NUM_ACCOUNTS)
            await connection.execute(statement, since, until)
        await connection.execute("ALTER TABLE usage_entries ADD CONSTRAINT pk_usage_entries PRIMARY KEY (request_id)")
        await connection.execute(
            "CREATE INDEX ix_usage_entries_account_id_started_at ON usage_entries (account_id, started_at)"
        )
        minutes_from = until - timedelta(days=1)
        await connection.execute(_SUM.format(unit="hour"), since, minutes_from)
        await connection.execute(_SUM.format(unit="minute"), minutes_from, until)
        await connection.execute("ANALYZE")
    finally:
        await connection.close()
    return time.perf_counter() - started_s


async def timed(ask: Callable[[], Awaitable[Any]], num_times: int = 21) -> dict[str, float]:
    """Return milliseconds of the first call, and the median and maximum of the others."""
    took: list[float] = []
    for _ in range(num_times):
        started_s = time.perf_counter()
        await ask()
        took.append((time.perf_counter() - started_s) * 1000)
    return {
        "first": round(took[0], 1),
        "median": round(statistics.median(took[1:]), 1),
        "slowest": round(max(took[1:]), 1),
    }


def entries(count: int) -> list[UsageEntry]:
    now = datetime.now(UTC)
    return [
        UsageEntry(
            request_id=uuid7(),
            account_id=f"{number % NUM_ACCOUNTS:032x}",
            api_token_id="t" * 32,
            model="@cf/bench/m0",
            revision="r",
            task="text-generation",
            pop="pop0",
            node_id="n",
            status="stop",
            prompt_tokens=900,
            cached_tokens=300,
            completion_tokens=120,
            started_at=now,
            ttft_ms=80.0,
            duration_ms=900.0,
            attempts=1,
            micro_neurons=250_000,
            is_stream=True,
        )
        for number in range(count)
    ]


async def measure(url: str, num_rows: int) -> dict[str, Any]:
    until = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    since = until - timedelta(days=DAYS)
    filled_s = await fill(url, num_rows, since, until)
    database = Database.connect(url, statement_timeout_s=60)
    busy, usual = Filter(f"{3:032x}"), Filter(f"{500:032x}")
    span = (since, until + timedelta(days=1))
    day = until.replace(hour=0), until.replace(hour=0) + timedelta(days=1)
    ids = [f"{number:032x}" for number in range(200)]
    found = {
        "busy account, 30 days by day": lambda: usage_sums.total(database, busy, *span, by="day"),
        "usual account, 30 days by day": lambda: usage_sums.total(database, usual, *span, by="day"),
        "busy account, 30 days by model": lambda: usage_sums.total(database, busy, *span, by="model"),
        "busy account, 30 days by hour": lambda: usage_sums.total(database, busy, *span, by="hour"),
        "busy account, newest 50 calls": lambda: usage.list_recent(database, busy, 50),
        "busy account, latencies of 20,000": lambda: usage.latencies(database, busy, *span),
        "true-up of 200 accounts' day": lambda: usage_sums.micro_neurons(database, ids, *day),
    }
    times = {name: await timed(ask) for name, ask in found.items()}
    batches = [entries(500) for _ in range(10)]
    started_s = time.perf_counter()
    for batch in batches:
        await usage.write(database, batch)
    written_s = time.perf_counter() - started_s
    calls = sum(total.num_calls for total in await usage_sums.total(database, busy, *span))
    async with database.connection() as connection:
        sizes = (await connection.execute(text(_SIZES))).mappings().one()
    await database.close()
    return {
        "rows": num_rows,
        "busy_account_calls": calls,
        "filled_s": round(filled_s, 1),
        "ms": times,
        "entries_written_per_s": round(5000 / written_s),
        **{name: round(size / 1e6) for name, size in sizes.items()},
    }


_SIZES = """
SELECT pg_total_relation_size('usage_entries') AS entries_mb, pg_total_relation_size('usage_sums') AS sums_mb
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    options = parser.parse_args()
    server = PostgresServer()
    server.start()
    try:
        asyncio.run(migrate(server.url))
        print(json.dumps(asyncio.run(measure(server.url, options.rows))))
    finally:
        server.close()


if __name__ == "__main__":
    main()
