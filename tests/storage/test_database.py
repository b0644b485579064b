"""storage/database.py on SQLite and on Postgres."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import aiosqlite
import pytest
from sqlalchemy import func, insert, select, text

from storage.database import Database, insert_new, new_id_hex, utc_day, uuid7
from storage.errors import Conflict, StoreUnavailable
from telemetry.fair_share import current_account
from tenants.tables import accounts, api_token_epoch
from tests.postgres_server import PostgresServer
from tests.waiting import PATIENCE_S, wait_until

_NOON = datetime(2026, 11, 20, 12, 0, 0, 123456, tzinfo=UTC)


def _account(account_id: str = "a" * 32, created_at: datetime = _NOON) -> dict[str, object]:
    return {"account_id": account_id, "name": "Zoë", "created_at": created_at}


async def _count(database: Database) -> int:
    async with database.connection() as connection:
        return (await connection.execute(select(func.count()).select_from(accounts))).scalar_one()


async def test_transaction_commits_at_its_end_and_rolls_back_if_it_raises(database: Database) -> None:
    async with database.transaction() as connection:
        await connection.execute(insert(accounts).values(_account("a" * 32)))

    async def fails() -> None:
        async with database.transaction() as connection:
            await connection.execute(insert(accounts).values(_account("b" * 32)))
            raise KeyError("a mistake of the caller's")

    with pytest.raises(KeyError):
        await fails()
    assert await _count(database) == 1


async def test_duplicate_row_raises_conflict_and_insert_new_skips_it(database: Database) -> None:
    async def add(statement: object) -> None:
        async with database.transaction() as connection:
            await connection.execute(statement)  # type: ignore[call-overload]

    await add(insert(accounts).values(_account()))
    with pytest.raises(Conflict):
        await add(insert(accounts).values(_account()))
    await add(insert_new(accounts, database.dialect, key="account_id").values(_account()))
    assert await _count(database) == 1


async def test_invalid_statement_is_not_reported_as_unavailable(database: Database) -> None:
    async with database.connection() as connection:
        with pytest.raises(Exception, match="no_such_table"):
            await connection.execute(text("SELECT 1 FROM no_such_table"))


async def test_times_are_stored_exactly_and_naive_times_are_rejected(database: Database) -> None:
    in_tokyo = _NOON.astimezone(timezone(timedelta(hours=9)))
    async with database.transaction() as connection:
        await connection.execute(insert(accounts).values(_account(created_at=in_tokyo)))
    async with database.connection() as connection:
        stored = (await connection.execute(select(accounts.c.created_at))).scalar_one()
    assert stored == _NOON
    assert stored.utcoffset() == timedelta(0)
    async with database.connection() as connection:
        with pytest.raises(Exception, match="time zone"):
            await connection.execute(select(accounts).where(accounts.c.created_at == datetime(2026, 1, 1)))


async def test_utc_day_is_the_same_on_both_databases(database: Database) -> None:
    late = datetime(2026, 11, 20, 23, 59, 59, 999999, tzinfo=UTC)
    async with database.transaction() as connection:
        await connection.execute(insert(accounts).values(_account("a" * 32, late)))
        await connection.execute(insert(accounts).values(_account("b" * 32, late + timedelta(microseconds=1))))
        days = (await connection.execute(select(utc_day(accounts.c.created_at)).order_by("account_id"))).scalars().all()
    assert days == ["2026-11-20", "2026-11-21"]


async def test_concurrent_transactions_lose_no_update(database: Database) -> None:
    async def raise_epoch() -> None:
        async with database.transaction() as connection:
            epoch = select(api_token_epoch.c.epoch).with_for_update()
            value = (await connection.execute(epoch)).scalar_one()
            await connection.execute(api_token_epoch.update().values(epoch=value + 1))

    await asyncio.gather(*(raise_epoch() for _ in range(40)))
    async with database.connection() as connection:
        assert (await connection.execute(select(api_token_epoch.c.epoch))).scalar_one() == 40


async def test_cancelled_transaction_is_rolled_back_and_others_continue(database: Database) -> None:
    async def insert_slowly(number: int) -> None:
        async with database.transaction() as connection:
            await connection.execute(insert(accounts).values(_account(f"{number:032x}")))
            await connection.execute(text("SELECT 1"))
            await asyncio.sleep(60)

    for number in range(30):
        task = asyncio.create_task(insert_slowly(number))
        await asyncio.sleep(0.0005 * number)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert await _count(database) == 0
    async with database.transaction() as connection:
        await connection.execute(insert(accounts).values(_account()))
    assert await _count(database) == 1


async def test_concurrent_processes_lose_no_update_of_one_sqlite_file(
    sqlite_url: str, sqlite_database: Database
) -> None:
    program = (
        "import asyncio, sys\n"
        "from sqlalchemy import select\n"
        "from storage.database import Database\n"
        "from tenants.tables import api_token_epoch as table\n"
        "async def main():\n"
        "    database = Database.connect(sys.argv[1])\n"
        "    for _ in range(50):\n"
        "        async with database.transaction() as connection:\n"
        "            value = (await connection.execute(select(table.c.epoch))).scalar_one()\n"
        "            await connection.execute(table.update().values(epoch=value + 1))\n"
        "    await database.close()\n"
        "asyncio.run(main())\n"
    )
    writers = [await asyncio.create_subprocess_exec(sys.executable, "-c", program, sqlite_url) for _ in range(3)]
    assert [await writer.wait() for writer in writers] == [0, 0, 0]
    async with sqlite_database.connection() as connection:
        assert (await connection.execute(select(api_token_epoch.c.epoch))).scalar_one() == 150


async def test_sqlite_readers_see_the_last_commit_while_a_writer_is_open(sqlite_database: Database) -> None:
    async with sqlite_database.connection() as connection:
        pragmas = [(await connection.execute(text(f"PRAGMA {name}"))).scalar_one() for name in _SQLITE_PRAGMAS]
    assert pragmas == list(_SQLITE_PRAGMAS.values())
    async with sqlite_database.transaction() as writing:
        await writing.execute(insert(accounts).values(_account()))
        assert await asyncio.wait_for(_count(sqlite_database), PATIENCE_S) == 0
    assert await _count(sqlite_database) == 1


_SQLITE_PRAGMAS = {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}


async def test_new_sqlite_files_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    database = Database.connect(f"sqlite://{tmp_path / 'new.db'}")
    async with database.transaction() as connection:
        await connection.execute(text("CREATE TABLE t (n INTEGER)"))
        modes = {name: stat.S_IMODE(os.lstat(tmp_path / name).st_mode) for name in os.listdir(tmp_path)}
    await database.close()
    assert modes == {"new.db": 0o600, "new.db-wal": 0o600, "new.db-shm": 0o600}


async def test_locked_sqlite_file_is_unavailable_after_the_timeout(sqlite_url: str) -> None:
    holder, waiter = Database.connect(sqlite_url), Database.connect(sqlite_url, statement_timeout_s=0.1)
    async with holder.transaction():
        with pytest.raises(StoreUnavailable, match="locked"):
            async with waiter.transaction():
                pass
    async with waiter.transaction():
        pass
    await holder.close()
    await waiter.close()


async def test_file_that_is_not_a_database_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_bytes(b"this is not a database" * 100)
    for url in (f"sqlite://{tmp_path / 'x.db'}", f"sqlite://{tmp_path / 'no' / 'such' / 'folder.db'}"):
        database = Database.connect(url)
        with pytest.raises(StoreUnavailable):
            await database.ping()
        await database.close()


@pytest.mark.parametrize("url", ["mysql://x/y", "sqlite://relative.db", "sqlite://", "sqlite:///", "hello", ""])
def test_unsupported_url_is_rejected_without_showing_its_password(url: str) -> None:
    with pytest.raises(ValueError, match="expected sqlite") as caught:
        Database.connect(url)
    assert "\n" not in str(caught.value)


@pytest.fixture
async def outage(postgres_server: PostgresServer) -> AsyncIterator[tuple[PostgresServer, Database]]:
    """Return a Postgres server of this test, and a client that has been used once."""
    server = PostgresServer()
    server.start()
    database = Database.connect(server.url, statement_timeout_s=0.5)
    await wait_until(lambda: _answers(database))
    yield server, database
    await database.close()
    server.close()


async def test_stopped_postgres_is_unavailable_until_it_restarts(outage: tuple[PostgresServer, Database]) -> None:
    server, database = outage

    async def loses_its_server() -> None:
        async with database.transaction() as connection:
            await connection.execute(text("SELECT 1"))
            server.kill()
            await connection.execute(text("SELECT 1"))

    with pytest.raises(StoreUnavailable):
        await asyncio.wait_for(loses_its_server(), PATIENCE_S)
    with pytest.raises(StoreUnavailable):
        await database.ping()
    server.start()
    await wait_until(lambda: _answers(database))


async def test_unresponsive_postgres_is_unavailable_within_the_timeout(outage: tuple[PostgresServer, Database]) -> None:
    server, database = outage
    server.freeze()
    with pytest.raises(StoreUnavailable):
        async with asyncio.timeout(PATIENCE_S):
            await database.ping()
    server.thaw()
    await wait_until(lambda: _answers(database))


async def _answers(database: Database) -> bool:
    try:
        await database.ping()
    except StoreUnavailable:
        return False
    return True


async def test_postgres_read_begins_no_transaction(postgres_url: str) -> None:
    database = Database.connect(postgres_url)
    try:
        for opened, is_one in (
            (database.connection(), False),
            (database.transaction(), True),
            (database.connection(), False),
        ):
            async with opened as connection:
                began = [(await connection.execute(text("SELECT now()"))).scalar_one() for _ in range(2)]
            assert (began[0] == began[1]) == is_one, "now() is when a transaction began"
    finally:
        await database.close()


async def test_sqlite_read_is_one_call_to_the_connection_thread(
    sqlite_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sqlite_database.ping()  # opens a connection
    visits = []
    real: Any = aiosqlite.Connection._execute

    async def execute(connection: aiosqlite.Connection, run: Any, *arguments: Any, **options: Any) -> Any:
        visits.append(run)
        return await real(connection, run, *arguments, **options)

    monkeypatch.setattr(aiosqlite.Connection, "_execute", execute)
    await sqlite_database.ping()
    assert len(visits) == 1
    async with sqlite_database.transaction():
        pass
    assert len(visits) == 3, "one to begin it, one to end it"


async def test_writers_of_one_account_do_not_delay_writers_of_another(sqlite_url: str) -> None:
    database, order = Database.connect(sqlite_url), list[str]()

    async def write(account_id: str) -> None:
        current_account.set(account_id)
        async with database.transaction() as connection:
            await connection.execute(text("SELECT 1"))
            order.append(account_id)

    await asyncio.gather(*(write("flood") for _ in range(20)), write("other"))
    assert order.index("other") <= 2
    assert len(order) == 21
    await database.close()


async def test_wait_for_a_pooled_connection_times_out(postgres_url: str) -> None:
    small = Database.connect(postgres_url, pool_size=1, pool_timeout_s=0.05)
    async with small.connection(), small.connection():
        with pytest.raises(StoreUnavailable, match="in use"):
            await small.ping()
    await small.close()


def test_ids_are_unique_and_sort_by_time() -> None:
    assert len({new_id_hex() for _ in range(100)}) == 100
    assert all(len(id) == 32 and int(id, 16) >= 0 for id in (new_id_hex() for _ in range(10)))
    ids = [uuid7() for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert all(id[14] == "7" and id[19] in "89ab" and len(id) == 36 for id in ids)
    assert [id[:13] for id in ids] == sorted(id[:13] for id in ids)
