"""Models that sleep instead of being evicted: within a budget of host memory, woken by their next call, and never lost
by a crash, a full device or an operator."""

from __future__ import annotations

import asyncio
import os

import pytest

from engine.report import SleepFailed
from engine.serving import replicas as module
from engine.serving.replica_policy import Holding, plan_sleep
from engine.serving.replicas import ReplicaMemory
from engine.serving.snapshots import Snapshots
from engine.tasks.loading import ModelLoadError
from engine.tasks.work import Refused
from tests.engine.serving.test_replicas import House, refusal
from tests.waiting import wait_until

ENDED = ModelLoadError("the rank process has ended")


def new_house(num_models: int = 1, sleep_bytes: int = 40, budget_bytes: int = 0) -> House:
    """Return a house in which `num_models` are awake at once, and weights of 20 bytes sleep in `sleep_bytes`."""
    memory = ReplicaMemory(budget_bytes, kv_share_bytes=10, kv_floor_bytes=10, sleep_bytes=sleep_bytes)
    house = House(num_models, memory=memory)
    for model in "abcd":
        house.store.sizes[model] = 20
    return house


async def use(house: House, models: str) -> None:
    for model in models:
        house.clock.now_s += 1
        await house.use(model)


async def test_a_model_sleeps_and_the_next_call_wakes_it() -> None:
    house = new_house()
    await use(house, "ab")
    assert (house.state("a"), house.state("b")) == ("sleeping", "ready")
    assert (house.status("a").weight_bytes, house.status("a").host_bytes) == (0, 20)
    await use(house, "aba")
    assert (house.state("a"), house.state("b")) == ("ready", "sleeping")
    assert house.loaders.num_loads == 2
    assert house.loaders.models["a"].changes == ["sleep", "wake", "sleep", "wake"]


async def test_the_sleeping_model_that_was_used_least_recently_is_evicted() -> None:
    house = new_house()
    await use(house, "abcd")
    assert [house.state(model) for model in "abcd"] == ["evicted", "sleeping", "sleeping", "ready"]
    assert house.loaders.models["a"].is_closed
    assert len(house.store.held) == 3


@pytest.mark.parametrize("sleep_bytes", [0, 19])
async def test_without_host_memory_models_are_evicted(sleep_bytes: int) -> None:
    house = new_house(sleep_bytes=sleep_bytes)
    await use(house, "ab")
    assert house.state("a") == "evicted"
    assert house.loaders.models["a"].changes == []


async def test_a_model_that_cannot_sleep_is_evicted() -> None:
    house = new_house()
    await use(house, "a")
    house.loaders.models["a"].can_sleep = False
    await use(house, "b")
    assert house.state("a") == "evicted"


async def test_a_model_whose_sleep_fails_is_evicted_so_that_the_other_one_gets_its_memory() -> None:
    house = new_house()
    await use(house, "a")
    house.loaders.models["a"].sleep_error = SleepFailed("9 bytes of host memory are needed, and 3 are available")
    await use(house, "b")
    assert (house.state("a"), house.state("b")) == ("evicted", "ready")
    assert house.loaders.models["a"].is_closed
    await use(house, "a")
    assert house.loaders.num_loads == 3


async def test_calls_for_a_sleeping_model_wait_and_wake_it_once() -> None:
    house = new_house()
    await use(house, "ab")
    sleeper = house.loaders.models["a"]
    sleeper.sleep_gate.clear()
    waiting = [asyncio.create_task(house.use("a")) for _ in range(10)]
    await wait_until(lambda: sleeper.changes == ["sleep", "wake"])
    assert house.state("a") == "loading"
    sleeper.sleep_gate.set()
    await asyncio.gather(*waiting)
    assert sleeper.changes == ["sleep", "wake"]


async def test_a_call_that_arrives_while_its_model_falls_asleep_wakes_it_afterwards() -> None:
    house = new_house()
    await use(house, "a")
    sleeper = house.loaders.models["a"]
    sleeper.sleep_gate.clear()
    other = asyncio.create_task(house.use("b"))
    await wait_until(lambda: sleeper.changes == ["sleep"])
    again = asyncio.create_task(house.use("a"))
    await asyncio.sleep(0)
    sleeper.sleep_gate.set()
    await asyncio.gather(other, again)
    assert sleeper.changes == ["sleep", "wake"]
    assert house.loaders.num_loads == 2


async def test_without_device_memory_the_model_stays_asleep_and_its_calls_are_retryable() -> None:
    house = new_house()
    await use(house, "ab")
    sleeper = house.loaders.models["a"]
    sleeper.sleep_error = SleepFailed("30 bytes of device memory are needed, and 5 are free")
    for _ in range(2):  # the second call is refused without another attempt
        failure = (await refusal(house, "a")).failure
        assert (failure.reason, failure.is_retryable, failure.retry_after_s) == ("out_of_capacity", True, 5)
        assert failure.message == (
            "a is asleep and cannot wake now: 30 bytes of device memory are needed, and 5 are free"
        )
    assert (house.state("a"), sleeper.changes, sleeper.is_closed) == ("sleeping", ["sleep", "wake"], False)
    assert house.replicas.used_bytes == 0
    sleeper.sleep_error = None
    house.clock.now_s += module.RETRY_FAILED_S
    await use(house, "a")
    assert house.state("a") == "ready"


async def test_a_model_stays_asleep_while_the_others_are_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MEMORY_WAIT_S", 0.01)
    house = new_house()
    await use(house, "a")
    held = await house.replicas.acquire("b", "r")
    failure = (await refusal(house, "a")).failure
    assert failure.message == "a is asleep and cannot wake now: all loaded models are in use"
    assert (failure.is_retryable, failure.retry_after_s, house.state("a")) == (True, 1, "sleeping")
    house.replicas.release(held)
    house.clock.now_s += module.RETRY_FAILED_S
    await use(house, "a")
    assert (house.state("a"), house.state("b")) == ("ready", "sleeping")


async def test_a_wake_needs_the_whole_kv_cache_again() -> None:
    house = new_house(num_models=9, sleep_bytes=100, budget_bytes=60)
    await use(house, "abc")  # 30 bytes each
    assert [house.state(model) for model in "abc"] == ["sleeping", "ready", "ready"]
    await use(house, "a")
    assert [house.state(model) for model in "abc"] == ["ready", "sleeping", "ready"]
    assert house.replicas.used_bytes == 60


async def test_a_sleeping_model_is_evicted_for_the_device_memory_that_it_keeps() -> None:
    house = new_house(num_models=9, sleep_bytes=100, budget_bytes=60)
    await use(house, "ab")
    house.loaders.models["a"].device_bytes = 12
    await use(house, "c")
    held = [await house.replicas.acquire(model, "r") for model in "c"]
    assert [house.state(model) for model in "abc"] == ["sleeping", "ready", "ready"]
    await use(house, "d")  # 30 bytes beside c's 30 and the 12 that a keeps
    assert [house.state(model) for model in "abcd"] == ["evicted", "sleeping", "ready", "ready"]
    house.replicas.release(held[0])


@pytest.mark.parametrize("arrives", [False, True])
async def test_a_process_that_ends_while_its_model_falls_asleep(arrives: bool) -> None:
    house = new_house()
    await use(house, "a")
    sleeper = house.loaders.models["a"]
    sleeper.sleep_gate.clear()
    tasks = [asyncio.create_task(house.use("b"))]
    await wait_until(lambda: sleeper.changes == ["sleep"])
    if arrives:
        tasks.append(asyncio.create_task(house.use("a")))
        await asyncio.sleep(0)
    sleeper.is_alive, sleeper.sleep_error = False, ENDED
    sleeper.crash("killed")
    sleeper.sleep_gate.set()
    await asyncio.gather(*tasks)
    assert house.state("a") == ("ready" if arrives else "evicted")
    await use(house, "a")
    assert house.loaders.num_loads == 3
    assert len(house.store.held) == 2 - (house.state("b") == "evicted")


async def test_a_process_that_ends_while_its_model_sleeps_is_loaded_by_the_next_call() -> None:
    house = new_house()
    await use(house, "ab")
    house.loaders.models["a"].is_alive = False
    house.loaders.models["a"].crash("killed")
    assert (house.state("a"), house.detail("a"), house.loaders.num_loads) == ("evicted", "killed", 2)
    await use(house, "a")
    assert (house.state("a"), house.loaders.num_loads) == ("ready", 3)


@pytest.mark.parametrize("reports_first", [False, True])
async def test_a_process_that_ends_while_its_model_wakes_is_replaced(reports_first: bool) -> None:
    house = new_house()
    await use(house, "ab")
    sleeper = house.loaders.models["a"]
    sleeper.sleep_gate.clear()
    waiting = asyncio.create_task(house.use("a"))
    await wait_until(lambda: sleeper.changes == ["sleep", "wake"])
    sleeper.is_alive, sleeper.sleep_error = False, ENDED
    if reports_first:
        sleeper.crash("killed")
    sleeper.sleep_gate.set()
    await asyncio.sleep(0.01)
    if not reports_first:
        sleeper.crash("killed")
    await waiting
    assert (house.state("a"), house.loaders.num_loads) == ("ready", 3)
    assert sleeper.is_closed


async def test_a_crash_after_a_wake_is_noticed_before_it_is_reported() -> None:
    house = new_house()
    await use(house, "aba")
    woken = house.loaders.models["a"]
    woken.is_alive = False
    waiting = asyncio.create_task(house.use("a"))
    await asyncio.sleep(0.01)
    woken.crash("killed")
    await waiting
    assert (house.state("a"), house.loaders.num_loads) == ("ready", 3)


async def test_a_sleeping_model_can_be_unloaded_and_pinned() -> None:
    house = new_house(num_models=1)
    await use(house, "ab")
    await house.replicas.unload("a", waits=True)
    assert (house.state("a"), house.loaders.models["a"].is_closed) == ("absent", True)
    await use(house, "c")
    assert house.state("b") == "sleeping"
    await house.replicas.pin("b")
    assert house.state("b") == "ready"
    with pytest.raises(Refused, match="pinned"):
        await house.use("c")
    assert house.state("c") == "sleeping"


async def test_closing_ends_sleeping_models_and_their_files() -> None:
    house = new_house()
    num_files = len(os.listdir("/proc/self/fd"))
    await use(house, "ab")
    await house.replicas.close()
    assert all(each.is_closed for each in house.loaders.models.values())
    assert not house.store.held
    assert len(os.listdir("/proc/self/fd")) <= num_files


def test_replicas_of_one_revision_share_a_memory_file() -> None:
    snapshots = Snapshots()
    path = snapshots.open("r", "one")
    assert (snapshots.open("r", "two"), snapshots.open("s", "two") == path) == (path, False)
    snapshots.close("r", "one")
    assert os.stat(path).st_size == 0
    snapshots.close("r", "two")
    with pytest.raises(OSError):
        os.truncate(path, 1)


@pytest.mark.parametrize(
    ("num_bytes", "budget_bytes", "evicted"),
    [(10, 60, ()), (10, 50, ("a",)), (10, 40, ("a", "c")), (10, 29, None), (11, 60, ("a",))],
)
def test_room_for_a_sleeping_model(num_bytes: int, budget_bytes: int, evicted: tuple[str, ...] | None) -> None:
    asleep = [
        Holding("c", 10, last_used_s=3),
        Holding("a", 10, last_used_s=1),
        Holding("busy", 20, last_used_s=2, is_busy=True),
        Holding("d", 10, last_used_s=4),
    ]
    assert plan_sleep(num_bytes, asleep, budget_bytes) == evicted


async def test_load_that_sleeping_models_cannot_help_leaves_them_asleep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MEMORY_WAIT_S", 0.05)
    house = new_house(sleep_bytes=100, budget_bytes=1000)
    for model in "abc":
        await use(house, model)
        house.loaders.models[model].device_bytes = 1
    await house.replicas.acquire("d", "r")  # in use
    assert (await refusal(house, "a")).failure.reason == "out_of_capacity"
    assert [house.state(model) for model in "abc"] == ["sleeping"] * 3


async def test_models_that_fall_asleep_together_stay_within_the_budget() -> None:
    house = new_house(4, sleep_bytes=20, budget_bytes=60)
    house.store.sizes["c"] = 50
    await use(house, "abc")
    assert sorted(house.state(model) for model in "ab") == ["evicted", "sleeping"]


async def test_a_load_that_times_out_does_not_stop_the_end_of_a_sleeping_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MEMORY_WAIT_S", 0.05)
    house = new_house(4, sleep_bytes=100, budget_bytes=40)
    await use(house, "a")
    sleeper = house.loaders.models["a"]
    sleeper.device_bytes = 12
    await use(house, "b")
    close, may_end = sleeper.close, asyncio.Event()

    async def close_slowly() -> None:
        await may_end.wait()
        await close()

    monkeypatch.setattr(sleeper, "close", close_slowly)
    house.store.sizes["c"] = 30
    assert (await refusal(house, "c")).failure.message
    may_end.set()
    await wait_until(lambda: sleeper.is_closed)
