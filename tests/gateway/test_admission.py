"""Admission: limits on calls in flight, in total and per account, and draining."""

import asyncio
import contextlib

import pytest

from gateway.admission import Admission, ConcurrencySlot
from gateway.errors import Reason, Refusal


def refused(admission: Admission, account_id: str = "a") -> Refusal:
    with pytest.raises(Refusal) as caught:
        admission.enter(account_id)
    return caught.value


def fill(admission: Admission, account_id: str) -> list[ConcurrencySlot]:
    """Take slots for one account until a slot is refused."""
    slots: list[ConcurrencySlot] = []
    with contextlib.suppress(Refusal):
        while True:
            slots.append(admission.enter(account_id))
    return slots


async def test_slots_are_limited_and_released_after_errors():
    admission = Admission(2)
    with admission.enter("a"), admission.enter("a"):
        assert refused(admission).reason is Reason.OUT_OF_CAPACITY
    with pytest.raises(ZeroDivisionError), admission.enter("a"):
        raise ZeroDivisionError
    with admission.enter("a"), admission.enter("b"):
        assert refused(admission).reason is Reason.OUT_OF_CAPACITY


async def test_one_account_holds_at_most_two_thirds_of_the_slots():
    admission = Admission(90)
    flood = fill(admission, "a")
    assert len(flood) == 60
    assert refused(admission, "a").reason is Reason.CONCURRENCY_LIMITED
    second = fill(admission, "b")
    assert len(second) == 20
    third = fill(admission, "c")
    assert len(third) == 7, "another account always finds a free slot"
    for slot in flood[:30]:
        admission.release(slot)
        admission.release(slot)  # releasing a slot twice has no further effect
    assert len(fill(admission, "a")) == 12, "with 42 slots, the account holds twice the 21 free ones"
    for slot in (*second, *third):
        admission.release(slot)
    assert len(fill(admission, "a")) == 18


async def test_refusal_has_the_expected_wait_for_a_slot(monkeypatch: pytest.MonkeyPatch):
    now_s = 1000.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now_s)
    admission = Admission(3)
    held = fill(admission, "a")
    assert refused(admission, "a").retry_after_s == 1, "no call has ended yet"
    for _ in range(50):
        slot = admission.enter("b")
        now_s += 20.0
        admission.release(slot)
    last_slot = fill(admission, "b")
    assert refused(admission, "b").reason is Reason.OUT_OF_CAPACITY
    assert len(last_slot) == 1
    for slot in (*held, *last_slot):
        admission.release(slot)
    assert len(fill(admission, "b")) == 2
    assert 9 <= (refused(admission, "b").retry_after_s or 0) <= 11, "two slots of 20 s each"


async def test_drain_refuses_new_calls_and_ends_with_the_last_call():
    admission = Admission(2)
    with admission.enter("a"):
        admission.drain()
        assert refused(admission).reason is Reason.DRAINING
        waiting = asyncio.ensure_future(admission.wait_empty())
        await asyncio.sleep(0)
        assert not waiting.done()
    await asyncio.wait_for(waiting, 30)


async def test_every_call_in_flight_can_be_stopped():
    admission = Admission(6)
    stopped: list[int] = []
    with admission.enter("a") as first, admission.enter("a") as second, admission.enter("a"):
        first.stop = lambda: stopped.append(1)
        second.stop = lambda: stopped.append(2)
        admission.stop_all()
    assert sorted(stopped) == [1, 2]
