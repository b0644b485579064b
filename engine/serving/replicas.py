"""Replicas: the models this process has loaded, is loading, or could not load.

    cold ──► loading ──► ready ⇄ idle ──► sleeping     another model needs its memory; the next call wakes it
                ▲          │ crash   ├──► evicted      or its process ends, and the next call loads it again
                │          │         └──► draining ──► removed     an operator unloads it
                └──────────┘    after a growing delay; `failed` after MAX_CRASHES crashes in CRASH_WINDOW_S, and if the
                                device is lost: then it is not loaded again by this process

There is one replica per model revision. It is loaded once, however many calls wait for it. `engine/tasks/` knows how
the model of a task is loaded, `model_store.py` where its files come from, and `replica_policy.py` decides which models
share the memory. `sleepers.py` puts models to sleep. A wake is a load that keeps the processes: calls wait for both in
the same way.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from catalog.errors import CardError
from engine.protocol.events import Failed
from engine.protocol.status import ReplicaState, ReplicaStatus
from engine.serving.disk_cache import CacheFull
from engine.serving.model_store import FindsModels, LocalModel, ModelUnavailable
from engine.serving.replica import MAX_CRASHES, LoadProgress, ModelReplica, status_of
from engine.serving.replica_policy import Budget, Need, NoRoom, Plan, plan_load
from engine.serving.sleepers import Sleepers, is_sound_asleep, no_memory
from engine.tasks.loading import ModelDeviceLost, ModelLoadError
from engine.tasks.registry import KV_CACHE_TASKS
from engine.tasks.work import Refused, TaskModel
from storage.errors import StoreError
from telemetry import metrics
from telemetry.clock import SYSTEM_CLOCK, Clock

logger = logging.getLogger(__name__)

FIRST_RESTART_S = 0.05
MAX_RESTART_S = 30.0
CRASH_WINDOW_S = 300.0
RETRY_FAILED_S = 2.0  # how long calls are refused after a failed load, before the next attempt
MAX_RETRY_S = 30.0
DRAIN_POLL_S = 0.02
MAX_REMEMBERED = 32  # replicas remembered that have failed, and that are evicted
PARALLEL_LOADS = 2  # models read into memory at once
MAX_LOADING = 32  # models that load or wait for it; calls to further models are refused
MEMORY_WAIT_S = 5.0  # for which a load waits until models in use become idle


class LoadsModels(Protocol):
    """Loads a model in processes of its own, with at most `kv_bytes` of KV cache. `on_exit` is called with a reason if
    a process exits unexpectedly."""

    async def load(self, model: LocalModel, on_exit: Callable[[str], None], kv_bytes: int) -> TaskModel: ...


@dataclass(frozen=True)
class ReplicaMemory:
    """Memory for the models of this process. `budget_bytes` limits weights and KV caches together, 0 means no limit.
    A model with a KV cache gets `kv_share_bytes` for it, or less, but at least `kv_floor_bytes`, if less is free. A
    `kv_share_bytes` of 0 means an equal part of the free memory. `sleep_bytes` of host memory hold the weights of
    sleeping models; 0 disables sleeping."""

    budget_bytes: int = 0
    kv_share_bytes: int = 256 << 20
    kv_floor_bytes: int = 64 << 20
    sleep_bytes: int = 0

    def need_of(self, task: str, weight_bytes: int, num_sharing: int = 1) -> Need:
        """Return what a model of a task needs. `num_sharing` models are to share what is free, this one included."""
        if task not in KV_CACHE_TASKS:
            return Need(weight_bytes)
        if not self.kv_share_bytes:
            return Need(weight_bytes, self.kv_floor_bytes, None, num_sharing)
        return Need(weight_bytes, min(self.kv_floor_bytes, self.kv_share_bytes), self.kv_share_bytes)


class Replicas:
    """The replicas of this process: at most `max_replicas` loaded ones, within `memory`.

    `wanted` are the models to keep ready. A wanted model that was evicted for another one is no longer wanted; one
    that cannot be found is reported as failed. `pinned` models are kept ready too and never evicted. `on_change` is
    called whenever a replica's state changes.
    """

    def __init__(
        self,
        store: FindsModels,
        loaders: LoadsModels,
        max_replicas: int,
        wanted: Sequence[str] = (),
        on_change: Callable[[], None] = lambda: None,
        clock: Clock = SYSTEM_CLOCK,
        *,
        pinned: Iterable[str] = (),
        memory: ReplicaMemory = ReplicaMemory(),
    ) -> None:
        self._store = store
        self._loaders = loaders
        self._memory = memory
        self._budget = Budget(memory.budget_bytes, max_replicas)
        self._on_change = on_change
        self._clock = clock
        self._sleepers = Sleepers(memory.sleep_bytes, clock)
        self._replicas: dict[tuple[str, str], ModelReplica] = {}
        self._wanted = list(wanted)
        self._pinned = dict.fromkeys(pinned)  # ordered
        self._load_slots = asyncio.Semaphore(PARALLEL_LOADS)
        self._memory_freed = asyncio.Event()
        self._not_found: dict[str, str] = {}  # wanted model -> why none of its revisions is known
        self.lost_device = ""  # why a device cannot be used any more, if one cannot
        self._background: set[asyncio.Task[None]] = set()
        self._is_closing = False

    def __iter__(self) -> Iterator[ModelReplica]:
        return iter(list(self._replicas.values()))

    async def keep_ready(self) -> None:
        """Load each wanted or pinned model, in order, and retry failed ones with a growing delay, until cancelled."""
        delays_s: dict[str, float] = {}
        next_try_s: dict[str, float] = {}
        while True:
            for model in self._kept:
                if self.is_model_ready(model):
                    delays_s.pop(model, None)
                elif self._clock.monotonic_s() >= next_try_s.get(model, 0.0):
                    with contextlib.suppress(Refused):
                        await self.load_current(model)
                    delay_s = delays_s.get(model, RETRY_FAILED_S)
                    next_try_s[model] = self._clock.monotonic_s() + delay_s
                    delays_s[model] = min(MAX_RETRY_S, delay_s * 2)
            await asyncio.sleep(RETRY_FAILED_S * random.uniform(0.5, 1.0))  # noqa: S311 - desynchronizes nodes

    async def load_current(self, model: str) -> None:
        """Load the current revision of `model` and wait until it is ready. Raises Refused."""
        try:
            with _refusals(model):
                revision = await self._store.current_revision(model)
        except Refused as refused:
            self._report_not_found(model, refused.failure)
            raise
        self._not_found.pop(model, None)
        self.release(await self.acquire(model, revision))

    async def acquire(self, model: str, revision: str, task: str = "", wait_s: float = math.inf) -> ModelReplica:
        """Return the model's replica once it is ready; it stays loaded until `release`. Loads it if necessary.

        Raises Refused, also if the model's task is not `task`, and if loading will take longer than `wait_s`. The
        model is loaded all the same then.
        """
        now_s = self._clock.monotonic_s()
        replica = self._find_or_load(model, revision)
        replica.demand.add(now_s)
        if replica.state == "draining":
            raise Refused("out_of_capacity", f"{model} is being unloaded", is_retryable=True)
        left_s = self._load_left_s(replica, now_s)
        if left_s > max(0.0, wait_s):
            message = f"{model} is being loaded and will be ready in about {left_s:.0f} s"
            raise Refused("out_of_capacity", message, is_retryable=True, retry_after_s=math.ceil(left_s))
        replica.num_calls += 1
        replica.last_used_s = now_s
        try:
            while replica.state == "loading" or not replica.is_alive:
                if replica.state != "loading":  # its process has exited, and `on_exit` is about to be called
                    await replica.has_crashed.wait()
                assert replica.loading is not None
                await asyncio.shield(replica.loading)
            if replica.failure is not None:
                raise _copy_of(replica.failure)
            if task and replica.task != task:
                raise Refused("invalid_input", f"{model} is a model for {replica.task}, not for {task}")
        except BaseException:
            replica.num_calls -= 1
            raise
        return replica

    def release(self, replica: ModelReplica) -> None:
        """Undo one `acquire`."""
        replica.num_calls -= 1
        replica.last_used_s = self._clock.monotonic_s()
        if not replica.num_calls:
            self._memory_freed.set()

    @property
    def is_ready(self) -> bool:
        """True if the first wanted model can take calls, or no model is wanted, and no device is lost."""
        return not self.lost_device and all(self.is_model_ready(model) for model in self._wanted[:1])

    def is_model_ready(self, model: str) -> bool:
        """Return True if any revision of `model` can take calls."""
        return any(replica.state == "ready" for replica in self._replicas.values() if replica.model == model)

    def statuses(self) -> tuple[ReplicaStatus, ...]:
        """Return the status of each replica, and of each wanted model that was not found."""
        now_s = self._clock.monotonic_s()
        known = tuple(
            status_of(replica, now_s, is_pinned=replica.model in self._pinned) for replica in self._replicas.values()
        )
        models = {status.model for status in known}
        return known + tuple(self._status_without_replica(model) for model in self._kept if model not in models)

    def _status_without_replica(self, model: str) -> ReplicaStatus:
        """Return the status of a model that is to be kept ready and has no replica yet."""
        reason = self._not_found.get(model)
        return ReplicaStatus(
            model=model,
            revision="",
            state="cold" if reason is None else "failed",
            detail=reason or "",
            is_pinned=model in self._pinned,
        )

    @property
    def _kept(self) -> list[str]:
        """The models to keep ready, in the order in which they are loaded."""
        return list(dict.fromkeys((*self._pinned, *self._wanted)))

    @property
    def used_bytes(self) -> int:
        """Bytes that weights and KV caches hold."""
        return sum(each.weight_bytes + each.kv_bytes for each in self._replicas.values() if each.holds_memory)

    def is_pinned(self, model: str) -> bool:
        """Return True if the model is never evicted."""
        return model in self._pinned

    async def pin(self, model: str) -> None:
        """Never evict `model` from now on, and load it and wait until it is ready. Raises Refused; the model then stays
        pinned, and loading is retried."""
        self._pinned[model] = None
        self._on_change()
        await self.load_current(model)

    def unpin(self, model: str) -> None:
        """Allow to evict `model` again. It stays loaded until its memory is needed."""
        self._pinned.pop(model, None)
        self._on_change()

    def cancel_idle_loading(self) -> None:
        """Cancel the loading of models that no call waits for, because the process is about to exit."""
        loading = [each for each in self._replicas.values() if each.state == "loading" and not each.is_waking]
        for replica in [each for each in loading if not each.num_calls]:
            del self._replicas[replica.model, replica.revision]  # a later call loads the model again
            if replica.loading is not None:
                self._keep_task(replica.loading)
                replica.loading.cancel()
        self._on_change()

    async def unload(self, model: str, *, waits: bool) -> None:
        """Unload all replicas of `model`, which is no longer wanted. A later call loads the model again.

        Raises Refused if the model is not loaded or is pinned, or if calls use it. With `waits`, new calls are refused
        instead, and the model is unloaded once the last call has ended.
        """
        found = [replica for replica in self if replica.model == model]
        num_calls = sum(replica.num_calls for replica in found)
        if not found:
            raise Refused("model_unavailable", f"{model} is not loaded")
        if model in self._pinned:
            raise Refused("out_of_capacity", f"{model} is pinned; unpin it first")
        if num_calls and not waits:
            raise Refused("out_of_capacity", f"{num_calls} calls use {model}", is_retryable=True)
        self._wanted = [name for name in self._wanted if name != model]
        self._not_found.pop(model, None)
        await asyncio.gather(*(self._drain(replica) for replica in found))

    def forget_crashes(self, replica: ModelReplica, reason: str) -> None:
        """Stop counting the replica's crashes against it, because their cause is known and is now refused."""
        replica.crashes.clear()
        replica.detail = reason

    async def close(self) -> None:
        """Cancel all loading and end the processes of all models."""
        self._is_closing = True
        loading = [replica.loading for replica in self._replicas.values() if replica.loading is not None]
        for task in (*loading, *self._background):
            task.cancel()
        await asyncio.gather(*loading, *self._background, return_exceptions=True)
        await asyncio.gather(*(self._unload(replica) for replica in list(self._replicas.values())))

    # ── loading ──

    def _find_or_load(self, model: str, revision: str) -> ModelReplica:
        replica = self._replicas.get((model, revision))
        if replica is None:
            self._check_queue(model)
            self._forget("failed")
            replica = self._replicas[model, revision] = ModelReplica(model, revision)
            self._start_loading(replica, delay_s=0.0)
        elif replica.state == "evicted" or (replica.state in ("failed", "sleeping") and self._may_retry(replica)):
            self._check_queue(model)
            self._start_loading(replica, delay_s=0.0)
        return replica

    def _check_queue(self, model: str) -> None:
        """Raise Refused if too many models are loading already."""
        num_loading = sum(each.state == "loading" for each in self._replicas.values())
        if num_loading >= MAX_LOADING:
            message = f"{model} cannot be loaded now: {num_loading} models are loading"
            raise Refused("out_of_capacity", message, is_retryable=True)

    def _load_left_s(self, replica: ModelReplica, now_s: float) -> float:
        """Return the seconds until a loading replica is ready, as far as they can be predicted."""
        if replica.state != "loading":
            return 0.0
        before_s = 0.0
        for each in self._replicas.values():
            if each.state == "loading" and each is not replica and each.progress.started_s < replica.progress.started_s:
                before_s += each.return_s
        return replica.progress.download_left_s(now_s) + before_s / PARALLEL_LOADS + replica.return_s

    def _forget(self, state: ReplicaState) -> None:
        """Forget the replicas in this state, oldest first, that are more than are remembered."""
        found = [each for each in self._replicas.values() if each.state == state and not each.num_calls]
        oldest = sorted(found, key=lambda each: max(each.failed_s, each.last_used_s))
        for replica in oldest[: max(0, len(found) - MAX_REMEMBERED + 1)]:
            del self._replicas[replica.model, replica.revision]

    def _may_retry(self, replica: ModelReplica) -> bool:
        now = self._clock.monotonic_s()
        if replica.failure is None:
            return True
        if replica.is_device_lost or _is_crash_looping(replica, now):
            return False
        return now - replica.failed_s >= RETRY_FAILED_S

    def _start_loading(self, replica: ModelReplica, delay_s: float) -> None:
        replica.state = "loading"
        replica.failure = None
        replica.is_waking = replica.loaded is not None
        replica.progress = LoadProgress(self._clock.monotonic_s())
        replica.has_crashed.clear()
        replica.loading = asyncio.create_task(self._load(replica, delay_s))
        self._on_change()

    async def _load(self, replica: ModelReplica, delay_s: float) -> None:
        """Load the replica until it is ready or failed. Raises only CancelledError."""
        await asyncio.sleep(delay_s)
        started_s = self._clock.monotonic_s()
        exits: list[str] = []

        def on_exit(reason: str) -> None:
            exits.append(reason)
            self._on_crash(replica, reason)

        try:
            with _refusals(replica.model):
                if replica.is_waking:
                    await self._wake(replica)
                if replica.loaded is None:
                    replica.has_crashed.clear()
                    await self._load_files(replica, on_exit)
                    metrics.MODEL_LOAD_SECONDS.labels(replica.model).observe(self._clock.monotonic_s() - started_s)
        except Refused as refused:
            self._fail(replica, refused)
            return
        except Exception:  # a defect must not leave the calls of this model waiting
            logger.exception("replica could not be loaded", extra={"model": replica.model})
            self._fail(replica, Refused("internal", "the model could not be loaded; the node's log has the reason"))
            return
        if exits:  # while the model's tokenizer was still being read
            self._on_crash(replica, exits[0])
            return
        load_s = self._clock.monotonic_s() - started_s
        logger.info(
            "replica ready",
            extra={"model": replica.model, "revision": replica.revision, "load_s": round(load_s, 3)},
        )
        replica.state, replica.detail = "ready", ""
        replica.num_loads += 1
        self._on_change()

    async def _wake(self, replica: ModelReplica) -> None:
        """Wake a sleeping replica. If its process ends or has ended, `loaded` is None afterwards. Raises Refused."""
        loaded = replica.loaded
        try:
            if replica.falling_asleep is not None:
                await asyncio.wait({replica.falling_asleep})
            if replica.loaded is None:  # it could not sleep
                return
            with _refusals_asleep(replica.model):
                await self._take_memory(replica, replica.weight_bytes, replica.kv_bytes)
            if replica.loaded is not None:
                await self._sleepers.wake(replica, MEMORY_WAIT_S)
        except ModelLoadError:
            if replica.loaded is loaded:
                await replica.has_crashed.wait()
        finally:
            replica.is_waking = False

    async def _load_files(self, replica: ModelReplica, on_exit: Callable[[str], None]) -> None:
        started_s = self._clock.monotonic_s()
        progress = replica.progress

        def on_progress(num_bytes: int, size_bytes: int) -> None:
            progress.num_bytes, progress.size_bytes = num_bytes, size_bytes

        local = await self._store.open(replica.model, replica.revision, on_progress)
        open_s = 0.0 if progress.size_bytes else self._clock.monotonic_s() - started_s
        try:
            replica.task = local.manifest.task
            file_bytes = sum(file.size_bytes for file in local.manifest.files)
            await self._take_memory(replica, replica.weight_bytes or file_bytes)
            progress.waits_for = "waiting for other models that are being loaded"
            async with self._load_slots:
                progress.waits_for = ""
                started_s = self._clock.monotonic_s()
                replica.loaded = await self._loaders.load(local, on_exit, replica.kv_bytes)
        except BaseException as error:
            if isinstance(error, ModelDeviceLost):
                replica.is_device_lost, self.lost_device = True, str(error)
            self._store.release(local.revision)
            raise
        replica.reload_s = open_s + self._clock.monotonic_s() - started_s
        engine = replica.loaded.status()
        replica.weight_bytes = engine.weight_bytes or file_bytes
        replica.kv_bytes = engine.kv_bytes or replica.kv_bytes
        self._evict_excess()

    async def _take_memory(self, newcomer: ModelReplica, weight_bytes: int, kv_bytes: int | None = None) -> None:
        """Evict other models until weights and KV cache of this one fit; waits for models in use. Raises Refused.

        `kv_bytes` is the size of a KV cache that cannot be smaller.
        """
        if newcomer.holds_memory:  # loaded again after a crash
            return
        holders = {each.model for each in self._replicas.values() if each.holds_memory}
        num_sharing = len({newcomer.model, *self._kept} - holders)
        need = self._memory.need_of(newcomer.task, weight_bytes, max(1, num_sharing))
        if kv_bytes is not None:
            need = Need(weight_bytes, kv_bytes, kv_bytes)
        reason = ""
        try:
            async with asyncio.timeout(MEMORY_WAIT_S):
                while isinstance(plan := self._plan(need, self._free_budget), NoRoom):
                    reason = plan.reason
                    is_sleepers_memory = isinstance(self._plan(need, self._budget), Plan)
                    if is_sleepers_memory and await self._evict_sleeper(newcomer):
                        continue
                    if not plan.is_temporary:
                        raise Refused("out_of_capacity", reason, is_retryable=True)
                    newcomer.progress.waits_for = reason
                    self._memory_freed.clear()
                    await self._memory_freed.wait()
        except TimeoutError:
            raise Refused("out_of_capacity", reason, is_retryable=True) from None
        newcomer.progress.waits_for = ""
        newcomer.weight_bytes, newcomer.kv_bytes, newcomer.holds_memory = weight_bytes, plan.kv_bytes, True
        await self._evict(plan)

    @property
    def _free_budget(self) -> Budget:
        """The budget without the device memory that sleeping models keep."""
        kept_bytes = sum(each.device_bytes for each in self._replicas.values() if each.state == "sleeping")
        memory_bytes = self._budget.memory_bytes
        return Budget(max(1, memory_bytes - kept_bytes) if memory_bytes else 0, self._budget.max_models)

    async def _evict_sleeper(self, newcomer: ModelReplica) -> bool:
        """Evict the sleeping model that was used least recently, if its device memory counts. Return False if there is
        none."""
        found = [
            each
            for each in self._replicas.values()
            if is_sound_asleep(each) and each.device_bytes and each is not newcomer and not each.num_calls
        ]
        if not (found and self._budget.memory_bytes):
            return False
        await asyncio.wait({self._end_evicted(min(found, key=lambda each: each.last_used_s))})  # survives a timeout
        return True

    def _plan(self, need: Need, budget: Budget) -> Plan | NoRoom:
        now_s = self._clock.monotonic_s()
        held = [
            each.holding(now_s, is_pinned=each.model in self._pinned)
            for each in self._replicas.values()
            if each.holds_memory
        ]
        return plan_load(need, held, budget)

    def _evict_excess(self) -> None:
        """Evict idle models if a model turned out to need more memory than its files have bytes."""
        plan = self._plan(Need(0), Budget(self._budget.memory_bytes, self._budget.max_models + 1))
        if isinstance(plan, Plan) and plan.evicted:
            self._in_background(self._evict(plan))

    async def _evict(self, plan: Plan) -> None:
        """Take the memory of the models of a plan: they sleep if that is possible, otherwise their processes end."""
        ending = []
        for replica in plan.evicted:
            assert isinstance(replica, ModelReplica)
            self._wanted = [model for model in self._wanted if model != replica.model]
            self._not_found.pop(replica.model, None)
            others = self._sleepers.plan(replica, self._replicas.values())
            if others is None:
                ending.append(self._end_evicted(replica))
                continue
            room = {self._end_evicted(other) for other in others}
            replica.host_bytes = replica.host_bytes or replica.weight_bytes  # counts from now on
            replica.state, replica.detail, replica.holds_memory = "sleeping", "", False
            replica.falling_asleep = self._in_background(self._put_to_sleep(replica, room))
            ending.append(replica.falling_asleep)
        self._forget("evicted")
        if ending:
            self._on_change()
            await asyncio.wait(ending)

    async def _put_to_sleep(self, replica: ModelReplica, room: set[asyncio.Task[None]]) -> None:
        """Let a replica sleep when the evictions in `room` have ended, or evict it if it cannot sleep."""
        if room:
            await asyncio.wait(room)
        try:
            is_asleep = await self._sleepers.put_to_sleep(replica)
        except ModelLoadError:  # its process has ended, see `_on_crash`
            return
        if not is_asleep and replica.loaded is not None:
            await asyncio.wait({self._end_evicted(replica)})
        self._on_change()

    def _end_evicted(self, replica: ModelReplica) -> asyncio.Task[None]:
        """Evict a replica: end its processes in the background."""
        metrics.REPLICA_EVICTIONS.labels(replica.model).inc()
        loaded, replica.loaded = replica.loaded, None
        assert loaded is not None, "only loaded models are evicted"
        replica.detail, replica.holds_memory = "", False
        if not replica.is_waking:  # otherwise it is loaded again at once, because calls wait for it
            replica.state = "evicted"
        self._sleepers.forget(replica)
        logger.info("replica evicted", extra={"model": replica.model, "revision": replica.revision})
        return self._in_background(self._end(loaded, replica.revision))

    async def _end(self, loaded: TaskModel, revision: str) -> None:
        """End the processes of an evicted model."""
        try:
            await loaded.close()
        finally:
            self._store.release(revision)

    def _fail(self, replica: ModelReplica, refused: Refused) -> None:
        replica.state = "failed" if replica.loaded is None else "sleeping"
        replica.detail = refused.failure.message
        replica.failure = refused.failure
        replica.holds_memory = False
        self._memory_freed.set()
        replica.failed_s = self._clock.monotonic_s()
        self._log_failure(replica.model, refused.failure)

    def _report_not_found(self, model: str, failure: Failed) -> None:
        """Report in the node's status why a wanted model is missing, once per reason."""
        if self._not_found.get(model) != failure.message:
            self._not_found[model] = failure.message
            self._log_failure(model, failure)

    def _log_failure(self, model: str, failure: Failed) -> None:
        metrics.MODEL_FAILURES.labels(failure.reason).inc()
        logger.error("model unavailable", extra={"model": model, "reason": failure.message})
        self._on_change()

    async def _drain(self, replica: ModelReplica) -> None:
        """Refuse new calls, wait until running ones have ended, and unload the replica."""
        while True:
            if replica.loading is not None:  # also after a crash while calls run
                await asyncio.wait({replica.loading})
            if replica.state != "failed" and replica.state != "draining":
                replica.state = "draining"
                self._on_change()
            if not replica.num_calls:
                break
            await asyncio.sleep(DRAIN_POLL_S)
        await self._unload(replica)

    async def _unload(self, replica: ModelReplica) -> None:
        """Remove the replica and end its processes."""
        self._replicas.pop((replica.model, replica.revision), None)
        self._memory_freed.set()
        loaded, replica.loaded = replica.loaded, None
        if loaded is not None:
            replica.state = "draining"
            self._sleepers.forget(replica)
            logger.info("replica unloaded", extra={"model": replica.model, "revision": replica.revision})
            await loaded.close()
            self._store.release(replica.revision)
        self._on_change()

    # ── crashes ──

    def _on_crash(self, replica: ModelReplica, reason: str) -> None:
        """Reload a replica whose process exited unexpectedly, unless it keeps crashing."""
        if self._is_closing or replica.loaded is None:
            return
        now = self._clock.monotonic_s()
        replica.crashes.append(now)
        replica.has_crashed.set()
        metrics.RANK_RESTARTS.labels(replica.model).inc()
        crashed, replica.loaded = replica.loaded, None
        self._in_background(crashed.close())
        self._store.release(replica.revision)
        self._sleepers.forget(replica)
        if replica.is_waking:  # `_load` goes on and loads the files
            return
        if replica.state == "sleeping":
            replica.state, replica.detail = "evicted", reason
            logger.error("sleeping replica ended", extra={"model": replica.model, "reason": reason})
            self._on_change()
            return
        if _is_crash_looping(replica, now):
            message = f"the model crashed {MAX_CRASHES} times in {CRASH_WINDOW_S / 60:g} minutes; last: {reason}"
            self._fail(replica, Refused("model_unavailable", message, is_retryable=True))
            return
        num_recent = sum(now - at < CRASH_WINDOW_S for at in replica.crashes)
        delay_s = min(MAX_RESTART_S, FIRST_RESTART_S * 10 ** max(0, num_recent - 1))
        replica.detail = f"{reason}; {replica.detail}" if replica.detail else reason
        logger.error(
            "replica crashed", extra={"model": replica.model, "reason": replica.detail, "restart_in_s": delay_s}
        )
        self._start_loading(replica, delay_s)

    def _in_background(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._keep_task(task)
        return task

    def _keep_task(self, task: asyncio.Task[None]) -> None:
        """Hold a reference to the task until it ends."""
        self._background.add(task)
        task.add_done_callback(self._background.discard)


def _is_crash_looping(replica: ModelReplica, now: float) -> bool:
    crashes = replica.crashes
    return len(crashes) == MAX_CRASHES and now - crashes[0] < CRASH_WINDOW_S


def _copy_of(failure: Failed) -> Refused:
    """Return a new exception, because a shared one would collect the tracebacks of all calls."""
    return Refused(
        failure.reason, failure.message, is_retryable=failure.is_retryable, retry_after_s=failure.retry_after_s
    )


@contextlib.contextmanager
def _refusals_asleep(model: str) -> Iterator[None]:
    """Say in refusals for lack of memory that the model is asleep, and when to call again."""
    try:
        yield
    except Refused as refused:
        raise no_memory(model, refused.failure.message, MEMORY_WAIT_S) from refused


@contextlib.contextmanager
def _refusals(model: str) -> Iterator[None]:
    """Convert errors that prevent loading a model to Refused."""
    try:
        yield
    except (ModelUnavailable, ModelLoadError, CardError) as error:
        raise Refused("model_unavailable", str(error), is_retryable=True) from error
    except CacheFull as error:
        raise Refused("out_of_capacity", str(error), is_retryable=True) from error
    except StoreError as error:
        raise Refused("out_of_capacity", f"the files of {model} cannot be fetched now", is_retryable=True) from error
    except OSError as error:
        raise Refused("model_unavailable", f"the files of {model} cannot be read here", is_retryable=True) from error
