"""Admission: a bounded number of calls in flight, none while draining."""

import asyncio

import pytest

from gateway.admission import Admission
from gateway.errors import Reason, Refusal


def reason_to_refuse(admission: Admission) -> Reason:
    with pytest.raises(Refusal) as caught:
        admission.enter()
    return caught.value.reason


async def test_places_are_bounded_and_given_back_even_after_an_error():
    admission = Admission(2)
    with admission.enter(), admission.enter():
        assert reason_to_refuse(admission) is Reason.OUT_OF_CAPACITY
    with pytest.raises(ZeroDivisionError), admission.enter():
        raise ZeroDivisionError
    with admission.enter(), admission.enter():
        assert reason_to_refuse(admission) is Reason.OUT_OF_CAPACITY


async def test_draining_lets_nothing_in_and_is_over_when_the_last_call_ends():
    admission = Admission(2)
    with admission.enter():
        admission.drain()
        assert reason_to_refuse(admission) is Reason.DRAINING
        waiting = asyncio.ensure_future(admission.wait_empty())
        await asyncio.sleep(0)
        assert not waiting.done()
    await asyncio.wait_for(waiting, 1)


async def test_every_call_in_flight_can_be_stopped():
    admission = Admission(3)
    stopped: list[int] = []
    with admission.enter() as first, admission.enter() as second, admission.enter():
        first.stop = lambda: stopped.append(1)
        second.stop = lambda: stopped.append(2)
        admission.stop_all()
    assert sorted(stopped) == [1, 2]
