"""Every Execute ends exactly once: by its task, its deadline, its caller, its model or the node's shutdown."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.protocol.events import Event, Failed, Finished, Started, Token
from engine.protocol.tasks.text_embeddings import TextEmbeddings
from engine.serving.calls import Calls
from engine.serving.replicas import Replicas
from engine.tasks.work import Refused
from tests.engine.node.wire_client import execute
from tests.fakes.task_models import FakeLoaders, FakeRun, FakeStore
from tests.waiting import wait_until


class House:
    def __init__(self, max_calls: int = 8) -> None:
        self.loaders = FakeLoaders()
        self.replicas = Replicas(FakeStore(), self.loaders, 4)
        self.calls = Calls(self.replicas, max_calls)
        self.heard: list[Event] = []

    @property
    def ends(self) -> list[Event]:
        return [event for event in self.heard if isinstance(event, Finished | Failed)]

    async def run(self, deadline_s: float = 30.0) -> FakeRun:
        """Begin a call and wait until it runs."""
        before = len(self.loaders.models["a"].runs) if "a" in self.loaders.models else 0
        self.calls.begin(execute(1, deadline_s=deadline_s), self.heard.append)
        await wait_until(lambda: "a" in self.loaders.models and len(self.loaders.models["a"].runs) > before)
        return self.loaders.models["a"].runs[-1]

    def failure(self) -> Failed:
        (end,) = self.ends
        assert isinstance(end, Failed)
        return end


async def test_no_event_follows_the_end() -> None:
    house = House()
    run = await house.run()
    run.say(Started(1), Finished("stop"), Token("late"), Failed("internal"))
    assert house.heard == [Started(1), Finished("stop")]
    assert house.replicas.statuses()[0].state == "ready"
    assert len(house.calls) == 0


async def test_the_deadline_ends_a_call_that_runs() -> None:
    house = House()
    run = await house.run(deadline_s=0.05)
    await wait_until(lambda: house.ends)
    assert house.failure().reason == "timeout"
    assert house.failure().usage.completion_tokens == 2
    assert run.is_cancelled


async def test_the_deadline_ends_a_call_whose_model_is_loading() -> None:
    house = House()
    house.loaders.gate.clear()
    house.calls.begin(execute(1, deadline_s=0.05), house.heard.append)
    await wait_until(lambda: house.ends)
    assert house.failure().reason == "timeout"
    house.loaders.gate.set()
    await wait_until(lambda: house.replicas.is_model_ready("a"))
    assert house.loaders.models["a"].runs == []


@pytest.mark.parametrize("deadline_s", [0.0, -1.0, float("-inf")])
async def test_a_deadline_that_has_passed_ends_at_once(deadline_s: float) -> None:
    house = House()
    house.calls.begin(execute(1, deadline_s=deadline_s), house.heard.append)
    await wait_until(lambda: house.ends)
    assert house.failure().reason == "timeout"


async def test_a_call_cancelled_while_it_starts_never_runs() -> None:
    house = House()
    run = await house.run()
    run.say(Finished("stop"))
    house.heard.clear()
    model = house.loaders.models["a"]
    model.start_gate.clear()
    call = house.calls.begin(execute(2), house.heard.append)
    assert call is not None
    await asyncio.sleep(0)
    call.cancel()
    model.start_gate.set()
    await house.replicas.acquire("a", "r")
    assert house.failure().reason == "aborted"
    assert len(model.runs) == 1


async def test_a_refusal_is_passed_on() -> None:
    house = House()
    house.calls.begin(execute(1, TextEmbeddings(texts=("x",))), house.heard.append)
    await wait_until(lambda: house.ends)
    assert house.failure().reason == "invalid_input"


async def test_a_bug_in_a_task_fails_its_call_and_no_other(caplog: pytest.LogCaptureFixture) -> None:
    house = House()
    run = await house.run()
    house.loaders.models["a"].error = ZeroDivisionError("a bug")
    other: list[Event] = []
    house.calls.begin(execute(2), other.append)
    await wait_until(lambda: other)
    (failed,) = other
    assert isinstance(failed, Failed)
    assert (failed.reason, failed.is_retryable) == ("internal", True)
    assert "a bug" not in failed.message
    run.say(Finished("stop"))
    assert house.ends == [Finished("stop")]


async def test_failed_start_releases_the_model() -> None:
    house = House()
    (await house.run()).say(Finished("stop"))
    house.loaders.models["a"].error = Refused("context_too_long", "too long")
    house.heard.clear()
    house.calls.begin(execute(2), house.heard.append)
    await wait_until(lambda: house.ends)
    replica = await house.replicas.acquire("a", "r")
    assert replica.num_calls == 1


async def test_calls_beyond_the_bound_are_refused_as_retryable() -> None:
    house = House(max_calls=1)
    await house.run()
    assert house.calls.begin(execute(2), house.heard.append) is None
    assert (house.failure().reason, house.failure().is_retryable) == ("out_of_capacity", True)


async def test_a_draining_node_refuses_new_calls_and_finishes_old_ones() -> None:
    house = House()
    run = await house.run()
    draining = asyncio.create_task(house.calls.drain(30.0))
    await asyncio.sleep(0)
    assert house.calls.begin(execute(2), house.heard.append) is None
    assert (house.failure().reason, house.failure().is_retryable) == ("draining", True)
    assert not draining.done()
    run.say(Finished("stop"))
    await draining
    assert house.heard[-1] == Finished("stop")


@pytest.mark.parametrize("deadline_s", [float("nan"), float("inf")])
async def test_nan_or_infinite_deadline_never_expires(deadline_s: float) -> None:
    house = House()
    run = await house.run(deadline_s=deadline_s)
    run.say(Finished("stop"))
    assert house.ends == [Finished("stop")]


async def test_drain_ends_after_its_timeout() -> None:
    house = House()
    run = await house.run()
    await house.calls.drain(0.05)
    assert house.failure().reason == "aborted"
    assert run.is_cancelled


async def test_abandoned_call_stops_without_events() -> None:
    house = House()
    run = await house.run()
    (call,) = house.calls._open
    call.abandon()
    run.say(Token("x"), Finished("stop"))
    assert run.is_cancelled
    assert house.heard == []
    assert len(house.calls) == 0


_steps = st.lists(st.sampled_from(["token", "finish", "fail", "cancel", "late", "turn"]), max_size=8)


@given(steps=_steps)
def test_every_order_of_events_has_exactly_one_end(steps: list[str]) -> None:
    async def play() -> None:
        house = House()
        run = await house.run()
        call = next(iter(house.calls._open))
        for step in steps:
            if step == "cancel":
                call.cancel()
            elif step == "late":
                call.end_early(Failed("timeout"))
            elif step == "turn":
                await asyncio.sleep(0)
            else:
                run.say({"token": Token("x"), "finish": Finished("stop"), "fail": Failed("internal")}[step])
        call.cancel()
        assert len(house.ends) == 1
        assert house.heard[-1] is house.ends[0]
        assert len(house.calls) == 0
        assert next(iter(house.replicas)).num_calls == 0

    asyncio.run(play())
