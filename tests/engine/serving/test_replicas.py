"""Replicas: loaded once however many calls wait, restarted after a crash, unloaded when idle; no wait is endless."""

from __future__ import annotations

import asyncio
import traceback

import pytest

from engine.protocol.status import ReplicaStatus
from engine.serving import replicas as module
from engine.serving.disk_cache import CacheFull
from engine.serving.model_store import ModelUnavailable
from engine.serving.replica import ModelReplica
from engine.serving.replica_policy import IDLE_AFTER_S
from engine.serving.replicas import ReplicaMemory, Replicas
from engine.tasks.loading import ModelDeviceLost, ModelLoadError
from engine.tasks.work import Refused
from storage.errors import StoreUnavailable
from tests.fakes.task_models import FakeLoaders, FakeStore, HandClock
from tests.waiting import wait_until


class House:
    """Replicas over fakes."""

    def __init__(
        self,
        max_replicas: int = 2,
        wanted: tuple[str, ...] = (),
        pinned: tuple[str, ...] = (),
        memory: ReplicaMemory | None = None,
    ) -> None:
        self.store = FakeStore()
        self.loaders = FakeLoaders()
        self.clock = self.loaders.clock = HandClock()
        self.num_changes = 0
        self.replicas = Replicas(
            self.store,
            self.loaders,
            max_replicas,
            wanted,
            on_change=self._changed,
            clock=self.clock,
            pinned=pinned,
            memory=memory or ReplicaMemory(),
        )

    def _changed(self) -> None:
        self.num_changes += 1

    async def use(self, model: str) -> ModelReplica:
        """Acquire and release a replica."""
        replica = await self.replicas.acquire(model, "r", "text-generation")
        self.replicas.release(replica)
        return replica

    def status(self, model: str) -> ReplicaStatus:
        return next(status for status in self.replicas.statuses() if status.model == model)

    def detail(self, model: str) -> str:
        return next((status.detail for status in self.replicas.statuses() if status.model == model), "")

    def state(self, model: str) -> str:
        return next((s.state for s in self.replicas.statuses() if s.model == model), "absent")


async def refusal(house: House, model: str = "a") -> Refused:
    with pytest.raises(Refused) as caught:
        await house.use(model)
    return caught.value


async def test_a_model_is_loaded_once_however_many_calls_wait_for_it() -> None:
    house = House()
    house.loaders.gate.clear()
    waiting = [asyncio.create_task(house.use("a")) for _ in range(10)]
    await wait_until(lambda: house.loaders.num_loads == 1)
    assert house.state("a") == "loading"
    house.loaders.gate.set()
    replicas = await asyncio.gather(*waiting)
    assert house.loaders.num_loads == 1
    assert len(set(map(id, replicas))) == 1
    assert house.state("a") == "ready"


async def test_a_call_that_stops_waiting_does_not_stop_the_loading() -> None:
    house = House()
    house.loaders.gate.clear()
    leaving, staying = asyncio.create_task(house.use("a")), asyncio.create_task(house.use("a"))
    await wait_until(lambda: house.loaders.num_loads == 1)
    leaving.cancel()
    house.loaders.gate.set()
    assert (await staying).num_calls == 0


async def test_least_recently_used_idle_model_is_evicted() -> None:
    house = House(max_replicas=2)
    for model in ("a", "b", "a", "c"):
        house.clock.now_s += 1
        await house.use(model)
    assert (house.state("a"), house.state("b"), house.state("c")) == ("ready", "evicted", "ready")
    assert house.loaders.models["b"].is_closed
    assert len(house.store.held) == 2


async def test_model_in_use_is_never_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MEMORY_WAIT_S", 0.01)
    house = House(max_replicas=1)
    held = await house.replicas.acquire("a", "r")
    refused = await refusal(house, "b")
    assert (refused.failure.reason, refused.failure.is_retryable) == ("out_of_capacity", True)
    assert house.state("a") == "ready"
    house.replicas.release(held)
    house.clock.now_s += module.RETRY_FAILED_S
    await house.use("b")
    assert house.state("a") == "evicted"


async def test_load_waits_until_a_model_in_use_becomes_idle() -> None:
    house = House(max_replicas=1)
    held = await house.replicas.acquire("a", "r")
    waiting = asyncio.create_task(house.use("b"))
    await wait_until(lambda: house.detail("b") == "all loaded models are in use")
    house.replicas.release(held)
    await waiting
    assert (house.state("a"), house.state("b")) == ("evicted", "ready")


async def test_models_share_the_memory_by_bytes() -> None:
    house = House(max_replicas=9, memory=ReplicaMemory(100, kv_share_bytes=30, kv_floor_bytes=10))
    for model, size in (("a", 20), ("b", 20), ("c", 30), ("d", 60)):
        house.store.sizes[model] = size
    for model in ("a", "b"):
        house.clock.now_s += 1
        await house.use(model)
    assert (house.status("a").kv_bytes, house.status("b").kv_bytes, house.replicas.used_bytes) == (30, 30, 100)
    await house.use("c")  # needs 40: one model must go
    assert [house.state(model) for model in "abc"] == ["evicted", "ready", "ready"]
    assert house.status("c").kv_bytes == 20, "what is left of its share"
    assert (house.status("a").weight_bytes, house.status("a").kv_bytes) == (0, 0)
    await house.use("d")
    assert [house.state(model) for model in "abcd"] == ["evicted", "evicted", "evicted", "ready"]
    assert house.loaders.kv_bytes["d"] == 30


async def test_evicted_model_is_loaded_again_for_the_next_call() -> None:
    house = House(max_replicas=1)
    for _ in range(3):
        assert (await house.use("a")).num_calls == 0
        assert (await house.use("b")).num_calls == 0
    assert (house.loaders.num_loads, len(house.store.held)) == (6, 1)


async def test_model_without_calls_for_a_minute_is_idle() -> None:
    house = House()
    await house.use("a")
    assert house.state("a") == "ready"
    house.clock.now_s += IDLE_AFTER_S
    assert house.state("a") == "idle"
    held = await house.replicas.acquire("a", "r")
    assert house.state("a") == "ready"
    house.replicas.release(held)


async def test_busier_model_stays_when_another_is_evicted() -> None:
    house = House(max_replicas=2)
    for model, num_calls in (("a", 5), ("b", 1)):
        house.loaders.load_s = 1.0
        for _ in range(num_calls):
            await house.use(model)
    house.clock.now_s += 1
    await house.use("b")
    await house.use("c")
    assert (house.state("a"), house.state("b")) == ("ready", "evicted")
    assert house.status("a").demand > house.status("b").demand > 0


async def test_pinned_model_is_loaded_and_never_evicted() -> None:
    house = House(max_replicas=1, pinned=("a",))
    assert (house.state("a"), house.status("a").is_pinned) == ("cold", True)
    await house.replicas.pin("a")
    refused = await refusal(house, "b")
    assert "pinned" in refused.failure.message
    with pytest.raises(Refused, match="a is pinned"):
        await house.replicas.unload("a", waits=True)
    house.replicas.unpin("a")
    house.clock.now_s += module.RETRY_FAILED_S
    await house.use("b")
    assert (house.state("a"), house.status("a").is_pinned) == ("evicted", False)


async def test_model_that_can_never_fit_is_refused_at_once() -> None:
    house = House(memory=ReplicaMemory(100, kv_share_bytes=30, kv_floor_bytes=10))
    house.store.sizes["a"] = 95
    await house.use("b")
    assert (await refusal(house)).failure.message == (
        "the model needs 105 bytes, and the node has 100 for weights and KV caches"
    )
    assert house.state("b") == "ready"


async def test_call_whose_deadline_is_before_the_end_of_the_load_is_refused_with_a_time_to_retry() -> None:
    house = House(max_replicas=1)
    house.loaders.load_s = 30.0
    await house.use("a")
    await house.use("b")
    house.loaders.gate.clear()
    with pytest.raises(Refused) as caught:
        await house.replicas.acquire("a", "r", wait_s=10.0)
    assert (caught.value.failure.reason, caught.value.failure.retry_after_s) == ("out_of_capacity", 30)
    assert house.state("a") == "loading", "the model is loaded for later calls"
    house.loaders.gate.set()
    await house.use("a")


async def test_queue_of_loads_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_LOADING", 3)
    house = House(max_replicas=9)
    house.loaders.gate.clear()
    waiting = [asyncio.create_task(house.use(model)) for model in "abc"]
    await wait_until(lambda: house.detail("c") == "waiting for other models that are being loaded")
    assert house.loaders.num_loads == module.PARALLEL_LOADS
    assert "3 models are loading" in (await refusal(house, "d")).failure.message
    house.loaders.gate.set()
    await asyncio.gather(*waiting)
    await house.use("d")


async def test_one_of_two_loads_gets_the_last_replica_slot() -> None:
    house = House(max_replicas=1)
    outcomes = await asyncio.gather(house.use("a"), house.use("b"), return_exceptions=True)
    assert sum(isinstance(outcome, ModelReplica) for outcome in outcomes) >= 1


async def test_crashed_model_is_loaded_again() -> None:
    house = House()
    await house.use("a")
    first = house.loaders.models["a"]
    first.crash("killed by signal 9")
    assert house.state("a") == "loading"
    await wait_until(lambda: house.state("a") == "ready")
    assert first.is_closed
    assert house.loaders.num_loads == 2
    assert len(house.store.held) == 1


async def test_a_call_that_comes_after_a_crash_waits_for_the_model() -> None:
    house = House()
    await house.use("a")
    house.loaders.models["a"].crash("gone")
    assert (await house.use("a")).task_model is house.loaders.models["a"]


async def test_call_between_a_crash_and_its_report_waits_for_the_model() -> None:
    house = House()
    await house.use("a")
    dead = house.loaders.models["a"]
    dead.is_alive = False
    waiting = asyncio.create_task(house.use("a"))
    await asyncio.sleep(0)
    dead.crash("gone")
    assert (await waiting).task_model is not dead


async def test_repeatedly_crashing_model_is_rejected_until_its_crashes_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_RESTART_S", 0.0)
    house = House()
    for _ in range(module.MAX_CRASHES):
        await house.use("a")
        house.loaders.models["a"].crash("killed by signal 11")
    refused = await refusal(house)
    assert refused.failure.reason == "model_unavailable"
    assert refused.failure.is_retryable
    assert "crashed 3 times" in refused.failure.message
    assert house.store.held == []
    house.clock.now_s += module.CRASH_WINDOW_S + 1
    await house.use("a")
    assert house.state("a") == "ready"


async def test_crash_during_loading_is_reported() -> None:
    house = House()
    loaders = house.loaders
    load = loaders.load

    async def dies_at_once(model, on_exit, kv_bytes):
        loaded = await load(model, on_exit, kv_bytes)
        if loaders.num_loads == 1:
            on_exit("died while its tokenizer was read")
        return loaded

    loaders.load = dies_at_once
    assert (await house.use("a")).task_model is loaders.models["a"]
    assert loaders.num_loads == 2


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ModelUnavailable("no such model"), "model_unavailable"),
        (CacheFull("no room"), "out_of_capacity"),
        (StoreUnavailable("down"), "out_of_capacity"),
        (OSError(5, "input/output error"), "model_unavailable"),
        (KeyError("a bug"), "internal"),
    ],
)
async def test_load_failure_is_reported_and_retried_later(error: Exception, reason: str) -> None:
    house = House()
    house.store.errors["a"] = error
    assert (await refusal(house)).failure.reason == reason
    house.store.errors.clear()
    assert (await refusal(house)).failure.reason == reason, "not tried again at once"
    house.clock.now_s += module.RETRY_FAILED_S
    await house.use("a")
    assert house.state("a") == "ready"


async def test_failed_load_releases_files_and_replica_slot() -> None:
    house = House(max_replicas=1)
    house.loaders.error = ModelLoadError("unknown architecture")
    assert "unknown architecture" in (await refusal(house)).failure.message
    assert house.store.held == []
    house.loaders.error = None
    await house.use("b")


async def test_a_model_does_only_its_own_task() -> None:
    house = House()
    with pytest.raises(Refused) as caught:
        await house.replicas.acquire("a", "r", "text-embeddings")
    assert caught.value.failure.reason == "invalid_input"
    assert (await house.use("a")).num_calls == 0


async def test_failures_are_remembered_in_bounded_number() -> None:
    house = House()
    house.loaders.error = ModelLoadError("no")
    for index in range(module.MAX_REMEMBERED + 10):
        await refusal(house, f"model-{index}")
    assert len(house.replicas.statuses()) <= module.MAX_REMEMBERED


async def test_wanted_models_are_loaded_in_order_and_reloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_FAILED_S", 0.01)
    house = House(wanted=("a", "b"))
    house.store.errors["a"] = StoreUnavailable("down")
    assert not house.replicas.is_ready
    keeping = asyncio.create_task(house.replicas.keep_ready())
    await wait_until(lambda: house.replicas.is_model_ready("b"))
    assert not house.replicas.is_ready
    house.store.errors.clear()

    def is_ready() -> bool:
        house.clock.now_s += 0.1
        return house.replicas.is_ready

    await wait_until(is_ready)
    keeping.cancel()


async def test_unknown_wanted_model_is_reported_as_failed_until_it_is_published(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "RETRY_FAILED_S", 0.01)
    house = House(wanted=("a",))
    house.store.unknown.add("a")
    keeping = asyncio.create_task(house.replicas.keep_ready())
    await wait_until(lambda: house.state("a") == "failed")
    (status,) = house.replicas.statuses()
    assert (status.revision, status.detail) == ("", "a is not published")
    assert house.num_changes == 1
    house.store.unknown.clear()

    def is_ready() -> bool:
        house.clock.now_s += 0.1
        return house.replicas.is_ready

    await wait_until(is_ready)
    assert [status.state for status in house.replicas.statuses()] == ["ready"]
    keeping.cancel()


async def test_failure_keeps_no_reference_to_ended_calls() -> None:
    """An exception that is raised in many calls would collect a traceback of each of them, including their prompts."""
    house = House()
    house.store.errors["a"] = ModelUnavailable("no such model")
    refused = [await refusal(house) for _ in range(3)]
    assert len(set(map(id, refused))) == 3
    assert len(list(traceback.walk_tb(refused[0].__traceback__))) == len(
        list(traceback.walk_tb(refused[2].__traceback__))
    )


async def test_a_long_call_counts_as_use_until_its_end() -> None:
    house = House(max_replicas=2)
    long = await house.replicas.acquire("a", "r")
    house.clock.now_s += 1
    await house.use("b")
    house.clock.now_s += 1
    house.replicas.release(long)
    await house.use("c")
    assert (house.state("a"), house.state("b")) == ("ready", "evicted")


async def test_close_unloads_ready_and_loading_models() -> None:
    house = House()
    await house.use("a")
    house.loaders.gate.clear()
    waiting = asyncio.create_task(house.use("b"))
    await wait_until(lambda: house.loaders.num_loads == 2)
    await house.replicas.close()
    assert house.loaders.models["a"].is_closed
    assert house.store.held == []
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_draining_node_continues_only_loads_that_a_call_waits_for() -> None:
    house = House(max_replicas=3, wanted=("a",))
    house.loaders.gate.clear()
    keeping = asyncio.create_task(house.replicas.keep_ready())
    waiting = asyncio.create_task(house.use("b"))
    await wait_until(lambda: house.loaders.num_loads == 2)
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
    house.replicas.cancel_idle_loading()
    assert (house.state("a"), house.state("b")) == ("cold", "loading")
    await wait_until(lambda: len(house.store.held) == 1)
    again = asyncio.create_task(house.use("a"))
    house.loaders.gate.set()
    await asyncio.gather(waiting, again)
    assert (house.state("a"), house.state("b")) == ("ready", "ready")


async def test_every_state_change_is_reported() -> None:
    house = House()
    await house.use("a")
    assert house.num_changes == 2
    house.loaders.models["a"].crash("x")
    assert house.num_changes == 3


async def test_draining_model_refuses_new_calls_and_is_unloaded_after_the_last_one() -> None:
    house = House(wanted=("a",))
    replica = await house.replicas.acquire("a", "r")
    with pytest.raises(Refused, match="1 calls use a"):
        await house.replicas.unload("a", waits=False)
    unloading = asyncio.create_task(house.replicas.unload("a", waits=True))
    await wait_until(lambda: house.state("a") == "draining")
    assert (await refusal(house)).failure.message == "a is being unloaded"
    house.replicas.release(replica)
    await unloading
    assert (house.state("a"), house.store.held, house.loaders.models["a"].is_closed) == ("absent", [], True)
    assert house.replicas.is_ready  # the unloaded model is no longer wanted
    await house.use("a")  # a later call loads it again
    assert house.loaders.num_loads == 2
    await house.replicas.close()


async def test_model_that_crashes_while_it_is_drained_is_unloaded() -> None:
    house = House()
    replica = await house.replicas.acquire("a", "r")
    unloading = asyncio.create_task(house.replicas.unload("a", waits=True))
    await wait_until(lambda: house.state("a") == "draining")
    house.loaders.models["a"].crash("killed")
    house.replicas.release(replica)
    await unloading
    assert (house.state("a"), house.store.held) == ("absent", [])
    await house.replicas.close()


async def test_model_on_a_lost_device_fails_and_is_not_loaded_again() -> None:
    house = House(wanted=("a",))
    keeping = asyncio.create_task(house.replicas.keep_ready())
    await wait_until(lambda: house.state("a") == "ready")
    assert house.replicas.is_ready
    await house.use("b")
    house.loaders.error = ModelDeviceLost("cuda:0 cannot create a context: CUDA error: unknown error")
    house.loaders.models["a"].crash("the rank process ended with exit code 1")
    await wait_until(lambda: house.state("a") == "failed")
    assert "cuda:0 cannot create a context" in house.detail("a")
    assert not house.replicas.is_ready
    assert "cuda:0 cannot create a context" in house.replicas.lost_device
    num_loads = house.loaders.num_loads
    house.loaders.error = None
    house.clock.now_s += 1000
    refused = await refusal(house)
    assert "cannot create a context" in refused.failure.message
    assert refused.failure.is_retryable, "another node may serve the call"
    assert house.loaders.num_loads == num_loads
    assert (await house.use("b")).state == "ready", "models elsewhere continue"
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)


async def test_automatic_kv_caches_share_what_is_free_among_the_models_to_keep_ready() -> None:
    house = House(wanted=("a", "b"), max_replicas=9, memory=ReplicaMemory(100, kv_share_bytes=0, kv_floor_bytes=5))
    for model, size in (("a", 20), ("b", 20), ("c", 10)):
        house.store.sizes[model] = size
    await house.use("a")
    assert house.status("a").kv_bytes == 40, "half of the memory that is free beside the weights"
    await house.use("b")
    assert house.status("b").kv_bytes == 20
    await house.use("c")
    assert house.status("c").kv_bytes > 0


async def test_automatic_kv_cache_without_a_budget_is_left_to_the_engine() -> None:
    house = House(memory=ReplicaMemory(kv_share_bytes=0))
    await house.use("a")
    assert house.loaders.kv_bytes["a"] == 0
