"""Fair shares: how much of a resource one account may hold, and in which order accounts are served."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from telemetry.fair_share import AccountShares, FairQueue


def test_account_may_hold_twice_as_many_units_as_are_free():
    shares = AccountShares(12)
    while not shares.has_enough("a"):
        shares.take("a")
    assert (shares.held_by("a"), shares.num_free) == (8, 4)
    while not shares.has_enough("b"):
        shares.take("b")
    assert shares.num_free > 0, "a third account finds a free unit"
    for _ in range(8):
        shares.give_back("a")
    assert (shares.held_by("a"), shares.num_held) == (0, shares.held_by("b"))


@contextlib.asynccontextmanager
async def holding(queue: FairQueue, accounts: str, served: list[str]) -> AsyncIterator[list[asyncio.Event]]:
    """Start one task for each letter, which is the name of an account; each holds a slot until its event is set."""
    ends = [asyncio.Event() for _ in accounts]

    async def hold(account_id: str, end: asyncio.Event) -> None:
        async with queue.slot(account_id):
            served.append(account_id)
            await end.wait()

    async with asyncio.TaskGroup() as group:
        for account_id, end in zip(accounts, ends, strict=True):
            group.create_task(hold(account_id, end))
        await settle()
        yield ends
        for end in ends:
            end.set()


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.mark.parametrize(("num_slots", "most"), [(1, 1), (2, 1), (3, 2), (10, 6)])
async def test_one_account_leaves_a_slot_to_others(num_slots: int, most: int):
    served: list[str] = []
    async with holding(FairQueue(num_slots), "a" * 12, served):
        assert len(served) == most
    assert len(served) == 12


async def test_waiting_accounts_are_served_in_turn():
    queue, served = FairQueue(1), list[str]()
    async with holding(queue, "aaaaabbc", served) as ends:
        for end in ends:
            end.set()
        await settle()
    assert "".join(served) == "aabcabaa"
    async with queue.slot("a"):
        assert queue.held_by("a") == 1
    assert queue.held_by("a") == 0


async def test_cancelled_and_late_waiters_leave_no_slot_behind():
    queue = FairQueue(1)

    async def pass_through() -> None:
        async with queue.slot("b"):
            pass

    async with queue.slot("a"):
        with pytest.raises(TimeoutError):
            async with queue.slot("b", timeout_s=0.01):
                pass
        waiting = [asyncio.create_task(pass_through()) for _ in range(3)]
        await settle()
        waiting[1].cancel()
        await settle()
    waiting[0].cancel()  # it has been given the slot, but has not run since
    await asyncio.gather(*waiting, return_exceptions=True)
    assert [job.cancelled() for job in waiting] == [True, True, False]
    async with queue.slot("c", timeout_s=1):
        pass
