"""tenants/usage/ledger.py: one row per call, whatever fails."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sqlite3
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import delete

from storage.database import Database
from storage.errors import StoreUnavailable
from storage.migrate import migrate
from storage.spool import Spool, SpoolFull
from tenants.tables import usage_entries, usage_spools
from tenants.tables import usage_sums as usage_sums_table
from tenants.usage import usage_entries as usage
from tenants.usage import usage_sums
from tenants.usage.ledger import UsageLedger
from tests.postgres_server import PostgresServer
from tests.tenants.switchable_database import SwitchableDatabase
from tests.tenants.usage.made_entries import EVER, entry
from tests.waiting import wait_until


@pytest.fixture
async def ledger(switchable: SwitchableDatabase, tmp_path: Path) -> AsyncIterator[UsageLedger]:
    """Return a running ledger."""
    ledger = UsageLedger(Spool(tmp_path / "spool"), switchable)
    running = asyncio.create_task(ledger.run())
    yield ledger
    await ledger.close()
    await asyncio.wait_for(running, 30)


async def _ids(database: Database) -> list[str]:
    return sorted(found.request_id for found in await usage.list_recent(database, "a" * 32, limit=100_000))


async def test_recorded_entry_is_in_the_database_soon(ledger: UsageLedger, database: Database) -> None:
    await asyncio.gather(*(ledger.record(entry(f"r{number:03}")) for number in range(300)))
    expected = [f"r{number:03}" for number in range(300)]

    async def all_there() -> bool:
        return await _ids(database) == expected

    await wait_until(all_there)


async def test_entries_of_concurrent_calls_are_written_in_batches(
    ledger: UsageLedger, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush, num_flushes = ledger.flush, 0

    async def counted() -> None:
        nonlocal num_flushes
        num_flushes += 1
        await flush()

    monkeypatch.setattr(ledger, "flush", counted)
    began_s = time.monotonic()
    ids: list[str] = []
    while num_flushes < 3:
        ids.append(f"r{len(ids):05}")
        await ledger.record(entry(ids[-1]))
        await asyncio.sleep(0.002)
    assert time.monotonic() - began_s >= 2 * 0.199
    await flush()
    assert await _ids(database) == ids


async def test_recording_continues_without_loss_while_the_database_is_unavailable(
    ledger: UsageLedger, switchable: SwitchableDatabase, database: Database
) -> None:
    switchable.is_unavailable = True
    for number in range(20):
        await ledger.record(entry(f"r{number:02}"))
    assert await _ids(database) == []
    switchable.is_unavailable = False

    async def all_there() -> bool:
        return len(await _ids(database)) == 20

    await wait_until(all_there)


async def test_entries_of_a_previous_process_are_moved(switchable: SwitchableDatabase, tmp_path: Path) -> None:
    switchable.is_unavailable = True
    former = UsageLedger(Spool(tmp_path / "spool"), switchable)
    await former.record(entry("r1"))
    await former.close()
    switchable.is_unavailable = False
    later = UsageLedger(Spool(tmp_path / "spool"), switchable)
    await later.flush()
    await later.close()
    assert await _ids(switchable) == ["r1"]


async def test_close_moves_remaining_entries(switchable: SwitchableDatabase, tmp_path: Path) -> None:
    ledger = UsageLedger(Spool(tmp_path / "spool"), switchable)
    await ledger.record(entry("r1"))
    await ledger.close()
    assert await _ids(switchable) == ["r1"]


async def test_replayed_spool_gives_one_row_per_entry(switchable: SwitchableDatabase, tmp_path: Path) -> None:
    """The spool is replayed with an unknown position, as after repeated crashes between commit and acknowledgement."""
    for _ in range(3):
        async with switchable.transaction() as connection:
            await connection.execute(delete(usage_spools))
        ledger = UsageLedger(Spool(tmp_path / "spool"), switchable)
        await ledger.record(entry("r1"))
        await ledger.record(entry("r2"))
        await ledger.flush()
        await ledger.close()
        (tmp_path / "spool" / "cursor").unlink()
    assert await _ids(switchable) == ["r1", "r2"]
    [total] = await usage_sums.total(switchable, usage_sums.Filter("a" * 32), *EVER)
    assert total.num_calls == 2


async def test_full_spool_writes_to_the_database_or_fails(switchable: SwitchableDatabase, tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool", max_bytes=8000)
    ledger = UsageLedger(spool, switchable)
    await _fill_up(spool)
    await ledger.record(entry("r1"))
    assert await _ids(switchable) == ["r1"]
    assert not ledger.has_room
    switchable.is_unavailable = True
    with pytest.raises(StoreUnavailable):
        await ledger.record(entry("r2"))
    await ledger.close(deadline_s=0.1)


async def _fill_up(spool: Spool) -> None:
    with contextlib.suppress(SpoolFull):
        while True:
            await spool.append(bytes(100))


async def test_database_that_accepts_no_rows_loses_no_entry(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path / 'unmigrated.db'}"
    database = Database.connect(url)
    ledger = UsageLedger(Spool(tmp_path / "spool"), database)
    await ledger.record(entry("r1"))
    with pytest.raises(StoreUnavailable, match="migrated"):
        await ledger.flush()
    await migrate(url)
    await ledger.flush()
    assert await _ids(database) == ["r1"]
    await ledger.close()
    await database.close()


async def test_invalid_entry_is_set_aside_and_others_are_written(
    switchable: SwitchableDatabase, tmp_path: Path
) -> None:
    spool = Spool(tmp_path / "spool")
    ledger = UsageLedger(spool, switchable)
    too_big = entry("big", prompt_tokens=1 << 63)
    await ledger.record(entry("r1"))
    await ledger.record(too_big)
    await spool.append(b"not an entry")
    await ledger.record(entry("r2"))
    await ledger.flush()
    await ledger.close()
    assert await _ids(switchable) == ["r1", "r2"]
    lines = (tmp_path / "spool" / "refused.hex").read_text().split()
    assert sorted(bytes.fromhex(line) for line in lines) == sorted([b"not an entry", usage.encode(too_big)])


async def test_older_copy_of_the_database_gets_the_entries_again(sqlite_url: str, tmp_path: Path) -> None:
    """After a failover to a replica that lagged, entries that the replica does not have are moved again."""
    file = Path(sqlite_url.removeprefix("sqlite://"))
    database = Database.connect(sqlite_url)
    ledger = UsageLedger(Spool(tmp_path / "spool", segment_bytes=4096, keep_s=600), database)
    for number in range(40):  # several segments
        await ledger.record(entry(f"r{number:02}"))
        await ledger.flush()
        if number == 9:
            with sqlite3.connect(file) as source, sqlite3.connect(tmp_path / "older.db") as copy:
                source.backup(copy)
    await database.close()
    for leftover in file.parent.glob(file.name + "*"):
        leftover.unlink()
    shutil.copyfile(tmp_path / "older.db", file)
    assert len(await _ids(database)) == 10
    await ledger.check()
    await ledger.record(entry("r40"))
    await ledger.flush()
    assert await _ids(database) == [f"r{number:02}" for number in range(41)]
    [total] = await usage_sums.total(database, usage_sums.Filter("a" * 32), *EVER)
    assert total.num_calls == 41
    await ledger.close()
    await database.close()


async def test_older_copy_is_detected_by_the_next_batch(sqlite_url: str, tmp_path: Path) -> None:
    database = Database.connect(sqlite_url)
    ledger = UsageLedger(Spool(tmp_path / "spool", keep_s=600), database)
    await ledger.record(entry("r1"))
    await ledger.flush()
    async with database.transaction() as connection:
        for table in (usage_entries, usage_sums_table, usage_spools):
            await connection.execute(delete(table))
    await ledger.record(entry("r2"))
    await ledger.flush()
    assert await _ids(database) == ["r1", "r2"]
    await ledger.close()
    await database.close()


async def test_spool_without_a_cursor_continues_at_the_ledger_s_position(
    switchable: SwitchableDatabase, tmp_path: Path
) -> None:
    """Entries that the ledger had and has deleted since are not counted again."""
    ledger = UsageLedger(Spool(tmp_path / "spool"), switchable)
    await ledger.record(entry("r1"))
    await ledger.close()
    (tmp_path / "spool" / "cursor").unlink()
    async with switchable.transaction() as connection:
        await connection.execute(delete(usage_entries))
    later = UsageLedger(Spool(tmp_path / "spool"), switchable)
    await later.record(entry("r2"))
    await later.close()
    assert await _ids(switchable) == ["r2"]


async def test_killed_processes_leave_one_row_per_recorded_call(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    """Processes are killed while they record and move entries; each prints the calls for which `record` returned."""
    program = (
        "import asyncio, itertools, sys\n"
        "from pathlib import Path\n"
        "from storage.database import Database\n"
        "from storage.spool import Spool\n"
        "from tenants.usage.ledger import UsageLedger\n"
        "from tests.tenants.usage.made_entries import entry\n"
        "async def main():\n"
        "    ledger = UsageLedger(Spool(Path(sys.argv[1])), Database.connect(sys.argv[2]))\n"
        "    running = asyncio.create_task(ledger.run())\n"
        "    async def one(id):\n"
        "        await ledger.record(entry(id))\n"
        "        sys.stdout.write(id + '\\n')\n"
        "        sys.stdout.flush()\n"
        "    for number in itertools.count():\n"
        "        await asyncio.gather(*(one(f'{sys.argv[3]}-{number}-{i}') for i in range(5)))\n"
        "asyncio.run(main())\n"
    )
    recorded: set[str] = set()
    for life in range(3):
        output = tmp_path / f"{life}.out"
        command = [sys.executable, "-c", program, str(tmp_path / "spool"), database_url, str(life)]
        with output.open("wb") as stdout:
            process = await asyncio.create_subprocess_exec(*command, stdout=stdout)
        await wait_until(lambda: output.stat().st_size > 2000)  # noqa: B023
        process.kill()
        await process.wait()
        recorded |= set(output.read_text().split("\n")[:-1])
    survivor = UsageLedger(Spool(tmp_path / "spool"), database)
    await survivor.flush()
    await survivor.close()
    found = await _ids(database)
    assert recorded <= set(found)
    assert len(set(found) - recorded) <= 3 * 5, "only what was under way when the process died may be there besides"


async def test_postgres_crash_loses_and_doubles_no_entry(postgres_server: PostgresServer, tmp_path: Path) -> None:
    server = PostgresServer()
    server.start()
    await migrate(server.url)
    database = Database.connect(server.url)
    ledger = UsageLedger(Spool(tmp_path / "spool"), database)
    running = asyncio.create_task(ledger.run())
    expected = []
    for life in range(3):
        for number in range(30):
            expected.append(f"{life}-{number:02}")
            await ledger.record(entry(expected[-1]))
            if number == 15:
                server.kill()
        server.start()

    async def all_there() -> bool:
        return await _ids(database) == expected

    await wait_until(all_there)
    await ledger.close()
    await asyncio.wait_for(running, 30)
    await database.close()
    server.close()
