"""Measure verification of an API token among a million, from the database and cached. Goals: 3 ms and 20 µs.

    python -m bench.token_verification [--tokens 1000000] [--requested 500] [--wait-for FILE]

Uses SQLite, and a real Postgres if `pgserver` is installed. Each token is verified once cold (its own query) and many
times from the cache, in a process set up like the gateway's. Prints medians and 99th percentiles as JSON. Filling the
tables takes minutes, measuring seconds: with `--wait-for`, the benchmark fills the tables, reports this on standard
error, and measures once FILE exists.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import uvloop

from bench.platform_under_test import machine
from gateway.__main__ import settle_interpreter
from storage.database import Database
from storage.migrate import migrate
from tenants import accounts
from tenants.credentials import api_tokens
from tenants.credentials.principal import Principal
from tenants.credentials.token_verifier import TokenVerifier
from tests.postgres_server import PostgresServer, find_postgres

PEPPER = b"a pepper for a benchmark, 32 byte"
COLUMNS = ("api_token_id", "account_id", "name", "kind", "status", "lookup_id", "digest", "policies")
REMEMBERED_TIMES = 20


def fillers(count: int, account_id: str) -> Iterator[tuple[object, ...]]:
    """Yield rows of tokens that are not verified."""
    for number in range(count):
        token_id = f"{number:032x}"
        yield token_id, account_id, "filler", "user", "active", f"~{number:09d}", os.urandom(32), "[]"


async def fill_sqlite(path: Path, rows: Iterator[tuple[object, ...]]) -> None:
    with sqlite3.connect(path) as connection:
        marks = ", ".join("?" * len(COLUMNS))
        statement = f"INSERT INTO api_tokens ({', '.join(COLUMNS)}, created_at) VALUES ({marks}, '2026-01-01 00:00:00')"
        connection.executemany(statement, rows)
    connection.close()


async def fill_postgres(url: str, rows: Iterator[tuple[object, ...]]) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute("ALTER TABLE api_tokens ALTER created_at SET DEFAULT now()")
    await connection.copy_records_to_table("api_tokens", records=rows, columns=COLUMNS)
    for statement in ("VACUUM ANALYZE api_tokens", "CHECKPOINT"):  # the state of a table that is no longer being filled
        await connection.execute(statement)
    await connection.close()


async def fill(url: str, num_tokens: int, num_requested: int) -> list[str]:
    """Fill a migrated database with `num_tokens` tokens; return the secrets of those that will be verified."""
    await migrate(url)
    database = Database.connect(url)
    account_id = (await accounts.create(database, "bench")).account_id
    made = [
        await api_tokens.create(database, PEPPER, account_id, "requested", ["Workers AI Read"])
        for _ in range(num_requested)
    ]
    await database.close()
    rows = fillers(num_tokens - num_requested, account_id)
    if url.startswith("sqlite"):
        await fill_sqlite(Path(url.removeprefix("sqlite://")), rows)
    else:
        await fill_postgres(url, rows)
    return [each.secret for each in made]


async def measure(url: str, secrets: list[str]) -> dict[str, float]:
    """Return milliseconds cold and microseconds cached."""
    settle_interpreter()
    database = Database.connect(url)
    verifier = TokenVerifier(database, PEPPER)
    await verifier.poll()
    await verifier.verify(secrets[0])  # opens a connection
    cold, cached = [], []
    for secret in secrets[1:]:
        start = time.perf_counter()
        found = await verifier.verify(secret)
        cold.append((time.perf_counter() - start) * 1e3)
        assert isinstance(found, Principal)
        for _ in range(REMEMBERED_TIMES):
            start = time.perf_counter()
            await verifier.verify(secret)
            cached.append((time.perf_counter() - start) * 1e6)
    await database.close()
    return {
        "cold_p50_ms": round(statistics.median(cold), 3),
        "cold_p99_ms": round(sorted(cold)[int(len(cold) * 0.99)], 3),
        "cached_p50_us": round(statistics.median(cached), 2),
        "cached_p99_us": round(sorted(cached)[int(len(cached) * 0.99)], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--requested", type=int, default=500)
    parser.add_argument("--wait-for", type=Path, default=None)
    options = parser.parse_args()
    report: dict[str, object] = {
        "bench": "token_verification",
        "tokens": options.tokens,
        "requested": options.requested,
    }
    folder = Path(tempfile.mkdtemp(prefix="hearth-bench-"))
    server = None
    try:
        urls = {"sqlite": f"sqlite://{folder / 'hearth.db'}"}
        if find_postgres() is not None:
            server = PostgresServer()
            server.start()
            urls["postgres"] = server.url
        secrets = {name: asyncio.run(fill(url, options.tokens, options.requested)) for name, url in urls.items()}
        sys.stderr.write("filled\n")
        while options.wait_for is not None and not options.wait_for.exists():
            time.sleep(0.2)
        for name, url in urls.items():
            found = uvloop.run(measure(url, secrets[name]))
            report[name] = found
    finally:
        if server is not None:
            server.close()
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(report | machine()))


if __name__ == "__main__":
    main()
