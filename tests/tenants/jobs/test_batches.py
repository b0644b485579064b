"""tenants/jobs/batches.py: one result and one usage entry per request despite crashes, and fair shares between
accounts.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import func, select

from storage.database import Database, uuid7
from tenants import accounts
from tenants.jobs import batches
from tenants.jobs.batches import Completion, LeasedChunk, NewBatch, NewChunk, QueueFull
from tenants.tables import batch_chunks, batch_results, usage_entries
from tenants.tables import batches as batches_table
from tests.tenants.usage.made_entries import entry

NOW = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
LEASE_S = 10.0
TIMES = {"lease_s": LEASE_S, "ttl_s": 100.0}


def later(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


async def queue(database: Database, account_id: str, *, chunks: int = 1, of: int = 2, cost: int = 10) -> str:
    """Queue a batch with these chunks and return its id."""
    made = [NewChunk(number * of, of, cost, b"sealed") for number in range(chunks)]
    batch = NewBatch(uuid7(), account_id, "t" * 32, "@cf/test/parrot", "@cf/test/parrot", NOW, made)
    await batches.submit(database, batch, max_waiting=1000)
    return batch.batch_id


def completions_of(leased: LeasedChunk, numbers: Sequence[int] | None = None) -> list[Completion]:
    """Return results for all open requests of a chunk, or for `numbers`."""
    first = leased.key[1]
    wanted = range(first, first + leased.num_requests) if numbers is None else numbers
    return [
        Completion(n, b"complete", 1, 2, (entry(f"{leased.key[0]}-{n}", account_id=leased.account_id),))
        for n in wanted
        if n not in leased.finished
    ]


async def take(database: Database, owner: str = "w1", now: datetime = NOW) -> LeasedChunk:
    found = await batches.take(database, owner, now, LEASE_S)
    assert found is not None
    return found


async def count(database: Database, table: Any) -> int:
    async with database.connection() as connection:
        return int((await connection.execute(select(func.count()).select_from(table))).scalar_one())


async def test_batch_is_finished_when_its_last_request_has_a_result(database: Database, account_id: str):
    batch_id = await queue(database, account_id, chunks=2)
    state = await batches.find(database, account_id, batch_id, NOW)
    assert state is not None
    assert (state.is_started, state.is_finished) == (False, False)
    for is_last in (False, True):
        leased = await take(database)
        assert (leased.key[0], leased.account_id, leased.is_account_blocked) == (batch_id, account_id, False)
        assert not await batches.store_results(database, "w1", {leased.key: completions_of(leased)}, NOW, **TIMES)
        state = await batches.find(database, account_id, batch_id, NOW)
        assert state is not None
        assert (state.is_started, state.is_finished) == (True, is_last)
    assert await batches.read_results(database, account_id, batch_id, 0, 10) == [b"complete"] * 4
    assert await batches.tokens_of(database, account_id, batch_id) == (4, 8)
    assert await batches.read_results(database, "f" * 32, batch_id, 0, 10) == []
    assert await batches.tokens_of(database, "f" * 32, batch_id) == (0, 0)
    assert await batches.take(database, "w1", later(1000), LEASE_S) is None
    assert await count(database, usage_entries) == 4


async def test_expired_lease_is_taken_over_without_finished_requests(database: Database, account_id: str):
    await queue(database, account_id)
    leased = await take(database)
    await batches.store_results(database, "w1", {leased.key: completions_of(leased, [0])}, NOW, **TIMES)
    assert await batches.take(database, "w2", later(LEASE_S - 1), LEASE_S) is None
    again = await take(database, "w2", later(LEASE_S))
    assert (again.key, again.finished, again.num_losses) == (leased.key, {0}, 1)
    late = await batches.store_results(
        database, "w1", {leased.key: completions_of(leased, [1])}, later(LEASE_S), **TIMES
    )
    assert late == {leased.key}
    assert await count(database, usage_entries) == 1
    assert not await batches.store_results(database, "w2", {again.key: completions_of(again)}, later(LEASE_S), **TIMES)
    assert await count(database, usage_entries) == 2


async def test_repeated_results_change_nothing(database: Database, account_id: str):
    batch_id = await queue(database, account_id)
    leased = await take(database)
    for _ in range(2):
        await batches.store_results(database, "w1", {leased.key: completions_of(leased, [0])}, NOW, **TIMES)
    state = await batches.find(database, account_id, batch_id, NOW)
    assert state is not None
    assert not state.is_finished
    assert await count(database, usage_entries) == 1


async def test_renewed_lease_is_not_taken_over(database: Database, account_id: str):
    await queue(database, account_id)
    leased = await take(database)
    for owner in ("w1", "another"):
        await batches.renew(database, owner, [leased.key], later(LEASE_S - 1), LEASE_S)
    assert await batches.take(database, "w2", later(LEASE_S + 1), LEASE_S) is None
    assert (await take(database, "w2", later(2 * LEASE_S))).num_losses == 1


async def test_released_chunk_waits_until_its_time(database: Database, account_id: str):
    await queue(database, account_id)
    leased = await take(database)
    await batches.release(database, "w1", [leased.key], later(5))
    assert not await batches.has_work(database, later(4))
    assert await batches.has_work(database, later(5))
    assert (await take(database, "w2", later(5))).num_losses == 0


async def test_submitting_a_batch_twice_queues_it_once(database: Database, account_id: str):
    batch = NewBatch(uuid7(), account_id, "t", "@cf/a/b", "@cf/a/b", NOW, [NewChunk(0, 1, 1, b"x")])
    for _ in range(2):
        await batches.submit(database, batch, max_waiting=10)
    assert await count(database, batch_chunks) == 1


async def test_number_of_waiting_requests_per_account_is_limited(database: Database, account_id: str):
    await queue(database, account_id, chunks=3)
    batch = NewBatch(uuid7(), account_id, "t", "@cf/a/b", "@cf/a/b", NOW, [NewChunk(0, 5, 1, b"x")])
    with pytest.raises(QueueFull):
        await batches.submit(database, batch, max_waiting=10)
    await batches.submit(database, replace(batch, batch_id=uuid7()), max_waiting=11)
    assert await count(database, batches_table) == 2


async def test_busy_accounts_get_equal_shares(database: Database):
    """One account has expensive chunks, another many cheap ones. A third comes later and has saved up no priority."""
    ada, bob, eve = [(await accounts.create(database, name)).account_id for name in ("ada", "bob", "eve")]
    for _ in range(3):
        await queue(database, ada, chunks=10, of=1, cost=30)
    await queue(database, bob, chunks=60, of=1, cost=10)
    served_tokens: Counter[str] = Counter()
    for number in range(44):
        if number == 20:
            await queue(database, eve, chunks=60, of=1, cost=10)
            before = Counter(served_tokens)
        found = await take(database, f"w{number}")
        served_tokens[found.account_id] += 30 if found.account_id == ada else 10
    assert abs(before[ada] - before[bob]) <= 30
    gained = [served_tokens[account] - before[account] for account in (ada, bob, eve)]
    assert max(gained) - min(gained) <= 2 * 30


async def test_released_chunk_is_not_charged(database: Database):
    ada, bob = [(await accounts.create(database, name)).account_id for name in ("ada", "bob")]
    await queue(database, ada, chunks=2)
    await queue(database, bob, chunks=2)
    for owner in ("w1", "w2", "w3", "w4", "w5"):
        first = await take(database, owner)
        await batches.release(database, owner, [first.key], NOW)
    assert {(await take(database, owner)).account_id for owner in ("w1", "w2")} == {ada, bob}


async def test_chunk_of_a_blocked_or_deleted_account_is_marked(database: Database, account_id: str):
    await queue(database, account_id)
    await accounts.set_blocked(database, account_id, True)
    assert (await take(database)).is_account_blocked


async def test_expired_batches_are_deleted_and_others_stay(database: Database, account_id: str):
    over = await queue(database, account_id)
    leased = await take(database)
    await batches.store_results(database, "w1", {leased.key: completions_of(leased)}, NOW, **TIMES)
    stays = await queue(database, account_id)
    assert await batches.find(database, account_id, over, later(99)) is not None
    assert await batches.find(database, account_id, over, later(100)) is None
    assert await batches.expire(database, later(100)) == 1
    assert await count(database, batch_results) == 0
    assert await batches.find(database, account_id, stays, later(10_000)) is not None


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(1, 8))])
async def test_killed_workers_leave_one_result_and_one_entry_per_request(database: Database, seed: int):
    """Seeded: chunks are leased, completed in parts that may be repeated, abandoned and taken over, until all are
    finished.
    """
    choose = random.Random(seed)
    owners = (f"w{number}" for number in itertools.count())
    tenants = [(await accounts.create(database, name)).account_id for name in ("ada", "bob")]
    ids = [await queue(database, choose.choice(tenants), chunks=choose.randint(1, 4), of=3) for _ in range(4)]
    now, held = NOW, []
    for _ in range(120):
        act = choose.choice(["take", "complete", "complete", "die", "wait"])
        if act == "take":
            owner = next(owners)
            found = await batches.take(database, owner, now, LEASE_S)
            held += [] if found is None else [(owner, found)]
        elif act == "complete" and held:
            owner, leased = choose.choice(held)
            some = [completion for completion in completions_of(leased) if choose.random() < 0.5]
            for _ in range(choose.choice([1, 1, 2])):
                await batches.store_results(database, owner, {leased.key: some}, now, **TIMES)
        elif act == "die" and held:
            held.pop(choose.randrange(len(held)))
        else:
            now += timedelta(seconds=choose.choice([1, LEASE_S]))
    while await count_open(database):
        now += timedelta(seconds=LEASE_S)
        last = next(owners)
        while (found := await batches.take(database, last, now, LEASE_S)) is not None:
            await batches.store_results(database, last, {found.key: completions_of(found)}, now, **TIMES)
    for batch_id in ids:
        async with database.connection() as connection:
            query = select(batches_table).where(batches_table.c.batch_id == batch_id)
            row = (await connection.execute(query)).mappings().one()
        assert row["num_done"] == row["num_requests"]
        assert row["finished_at"] is not None
        assert len(await batches.read_results(database, row["account_id"], batch_id, 0, 100)) == row["num_requests"]
    assert await count(database, usage_entries) == await count(database, batch_results)


async def count_open(database: Database) -> int:
    async with database.connection() as connection:
        query = select(func.count()).select_from(batch_chunks).where(batch_chunks.c.free_at.is_not(None))
        return int((await connection.execute(query)).scalar_one())


async def test_concurrent_workers_never_lease_the_same_chunk(database: Database, account_id: str):
    await queue(database, account_id, chunks=8)
    found = await asyncio.gather(*(batches.take(database, f"w{n}", NOW, LEASE_S) for n in range(6)))
    keys = [one.key for one in found if one is not None]
    assert keys
    assert len(set(keys)) == len(keys)
