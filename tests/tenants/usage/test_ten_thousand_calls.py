"""P6: ten thousand calls while processes and the database are killed, and everything is replayed twice. No row is lost
or doubled, and the sums agree.
"""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path

import pytest
from sqlalchemy import delete, func, select

from bench import figures
from storage.database import Database
from storage.errors import StoreUnavailable
from storage.migrate import migrate
from storage.spool import Spool
from tenants.tables import usage_entries, usage_spools
from tenants.usage import usage_sums
from tenants.usage.ledger import UsageLedger
from tests.postgres_server import PostgresServer, find_postgres
from tests.tenants.usage.made_entries import EVER, entry

pytestmark = [pytest.mark.full, pytest.mark.timeout(280)]

NUM_CALLS = 10_000
NUM_GATEWAYS = 3
AT_ONCE = 40
SEED = 6


async def gateway(spool: Path, url: str, acknowledged: Path, done: set[str], first: int, last: int) -> None:
    """Run one process: record the calls of its share that are not acknowledged yet."""
    ledger = UsageLedger(Spool(spool, segment_bytes=64 * 1024, keep_s=600), Database.connect(url))
    running = asyncio.create_task(ledger.run())
    left = iter([number for number in range(first, last) if str(number) not in done])

    with acknowledged.open("a") as file:

        async def client() -> None:
            for number in left:
                await ledger.record(entry(f"call-{number:05}", prompt_tokens=number, completion_tokens=number % 7))
                file.write(f"{number}\n")
                file.flush()
                await asyncio.sleep(0.002)  # simulates the rest of a call

        await asyncio.gather(*(client() for _ in range(AT_ONCE)))
    await ledger.close()
    await running


async def _ends(process: asyncio.subprocess.Process, within_s: float) -> bool:
    try:
        await asyncio.wait_for(process.wait(), within_s)
    except TimeoutError:
        return False
    return True


async def _lives(number: int, url: str, folder: Path, choose: random.Random) -> None:
    """Run one gateway after another on the same spool, killing each but the last."""
    share = NUM_CALLS // NUM_GATEWAYS + 1
    first, last = number * share, min((number + 1) * share, NUM_CALLS)
    arguments = [str(folder / f"spool{number}"), url, str(folder / f"acknowledged{number}"), str(first), str(last)]
    while True:
        process = await asyncio.create_subprocess_exec(sys.executable, "-m", __name__, *arguments)
        if await _ends(process, choose.uniform(1.0, 3.0)):
            assert process.returncode == 0
            return
        if choose.random() < 0.7:
            process.kill()
            await process.wait()
        else:
            await process.wait()
            assert process.returncode == 0
            return


async def _kill_the_database(server: PostgresServer, is_over: asyncio.Event, choose: random.Random) -> int:
    num_kills = 0
    while not is_over.is_set():
        await asyncio.sleep(choose.uniform(0.5, 2.0))
        await asyncio.to_thread(server.kill)
        await asyncio.sleep(0.2)
        await asyncio.to_thread(server.start)
        num_kills += 1
    return num_kills


async def _replay(database: Database, folder: Path) -> None:
    """Move all entries again, as for a ledger that does not know the spools."""
    async with database.transaction() as connection:
        await connection.execute(delete(usage_spools))
    for number in range(NUM_GATEWAYS):
        ledger = UsageLedger(Spool(folder / f"spool{number}", segment_bytes=64 * 1024, keep_s=600), database)
        while True:
            try:
                await ledger.flush()
                break
            except StoreUnavailable:  # a connection broken by the database's last crash
                await asyncio.sleep(0.1)
        await ledger.close()


@pytest.mark.skipif(find_postgres() is None, reason="no Postgres")
async def test_ten_thousand_calls_are_ten_thousand_rows_despite_kills(tmp_path: Path) -> None:
    server = PostgresServer()
    server.start()
    try:
        await migrate(server.url)
        is_over = asyncio.Event()
        killer = asyncio.create_task(_kill_the_database(server, is_over, random.Random(SEED)))
        choose = [random.Random(SEED * 10 + number) for number in range(NUM_GATEWAYS)]
        await asyncio.gather(*(_lives(number, server.url, tmp_path, choose[number]) for number in range(NUM_GATEWAYS)))
        is_over.set()
        assert await killer > 0
        database = Database.connect(server.url)
        for _ in range(2):
            await _replay(database, tmp_path)
        async with database.connection() as connection:
            ids = list((await connection.execute(select(usage_entries.c.request_id))).scalars())
            tokens = (await connection.execute(select(func.sum(usage_entries.c.prompt_tokens)))).scalar_one()
        [total] = await usage_sums.total(database, usage_sums.Filter("a" * 32), *EVER)
        await database.close()
        assert sorted(ids) == [f"call-{number:05}" for number in range(NUM_CALLS)]
        assert (total.num_calls, total.prompt_tokens) == (NUM_CALLS, int(tokens)) == (NUM_CALLS, sum(range(NUM_CALLS)))
        assert not any((tmp_path / f"spool{number}" / "refused.hex").exists() for number in range(NUM_GATEWAYS))
        figures.record("P6", f"{len(ids)} rows of {NUM_CALLS} calls: 0 lost, 0 double", f"pytest {Path(__file__).name}")
    finally:
        server.close()


if __name__ == "__main__":
    spool, url, acknowledged, first, last = sys.argv[1:]
    acknowledged_file = Path(acknowledged)
    done = set(acknowledged_file.read_text().split()) if acknowledged_file.exists() else set()
    asyncio.run(gateway(Path(spool), url, acknowledged_file, done, int(first), int(last)))
