"""Replicas: the models this process has loaded, is loading, or could not load.

    cold ──► loading ──► ready ──► draining ──► removed     another model needs its slot, or an operator unloads it
                ▲          │ crash
                └──────────┘    after a growing delay; `failed` after MAX_CRASHES crashes in CRASH_WINDOW_S

There is one replica per model revision. It is loaded once, however many calls wait for it. `engine/tasks/` knows how
the model of a task is loaded, `model_store.py` where its files come from.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from catalog.errors import CardError
from engine.protocol.events import Failed
from engine.protocol.status import ReplicaState, ReplicaStatus
from engine.report import EngineStatus
from engine.serving.disk_cache import CacheFull
from engine.serving.model_store import FindsModels, LocalModel, ModelUnavailable
from engine.tasks.loading import ModelLoadError
from engine.tasks.work import Refused, TaskModel
from storage.errors import StoreError
from telemetry import metrics
from telemetry.clock import SYSTEM_CLOCK, Clock

logger = logging.getLogger(__name__)

FIRST_RESTART_S = 0.05
MAX_RESTART_S = 30.0
MAX_CRASHES = 3
CRASH_WINDOW_S = 300.0
RETRY_FAILED_S = 2.0  # how long calls are refused after a failed load, before the next attempt
MAX_RETRY_S = 30.0
DRAIN_POLL_S = 0.02
MAX_FAILED = 32  # failed replicas remembered


class LoadsModels(Protocol):
    """Loads a model in processes of its own; `on_exit` is called with a reason if one exits unexpectedly."""

    async def load(self, model: LocalModel, on_exit: Callable[[str], None]) -> TaskModel: ...


@dataclass(eq=False)
class ModelReplica:
    """One model revision on this machine."""

    model: str
    revision: str
    state: ReplicaState = "cold"
    detail: str = ""
    task: str = ""
    num_calls: int = 0  # calls that have acquired this replica
    num_loads: int = 0  # times this replica became ready
    last_used_s: float = 0.0
    has_slot: bool = False  # counts towards `max_replicas`
    loaded: TaskModel | None = None
    loading: asyncio.Task[None] | None = None
    failed_s: float = 0.0
    failure: Failed | None = None
    has_crashed: asyncio.Event = field(default_factory=asyncio.Event)
    crashes: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_CRASHES))  # monotonic seconds

    @property
    def is_alive(self) -> bool:
        """False if a process has exited, even if `on_exit` was not called yet."""
        return self.loaded is None or self.loaded.is_alive

    @property
    def task_model(self) -> TaskModel:
        """The loaded model; only valid while this replica is acquired."""
        assert self.loaded is not None, "only a ready replica can be acquired"
        return self.loaded


class Replicas:
    """The replicas of this process, at most `max_replicas` of them loaded.

    `wanted` are the models to keep ready. A wanted model that was unloaded for another one is no longer wanted; one
    that cannot be found is reported as failed. `on_change` is called whenever a replica's state changes.
    """

    def __init__(
        self,
        store: FindsModels,
        loaders: LoadsModels,
        max_replicas: int,
        wanted: Sequence[str] = (),
        on_change: Callable[[], None] = lambda: None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._store = store
        self._loaders = loaders
        self._max_replicas = max_replicas
        self._on_change = on_change
        self._clock = clock
        self._replicas: dict[tuple[str, str], ModelReplica] = {}
        self._wanted = list(wanted)
        self._not_found: dict[str, str] = {}  # wanted model -> why none of its revisions is known
        self._background: set[asyncio.Task[None]] = set()
        self._is_closing = False

    def __iter__(self) -> Iterator[ModelReplica]:
        return iter(list(self._replicas.values()))

    async def keep_ready(self) -> None:
        """Load each wanted model, in order, and retry failed ones with a growing delay, until cancelled."""
        delays_s = dict.fromkeys(self._wanted, RETRY_FAILED_S)
        next_try_s = dict.fromkeys(self._wanted, 0.0)
        while True:
            for model in list(self._wanted):
                if self.is_model_ready(model):
                    delays_s[model] = RETRY_FAILED_S
                elif self._clock.monotonic_s() >= next_try_s[model]:
                    with contextlib.suppress(Refused):
                        await self.load_current(model)
                    next_try_s[model] = self._clock.monotonic_s() + delays_s[model]
                    delays_s[model] = min(MAX_RETRY_S, delays_s[model] * 2)
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

    async def acquire(self, model: str, revision: str, task: str = "") -> ModelReplica:
        """Return the model's replica once it is ready; it stays loaded until `release`. Loads it if necessary.

        Raises Refused, also if the model's task is not `task`.
        """
        replica = self._find_or_load(model, revision)
        if replica.state == "draining":
            raise Refused("out_of_capacity", f"{model} is being unloaded", is_retryable=True)
        replica.num_calls += 1
        replica.last_used_s = self._clock.monotonic_s()
        try:
            while replica.state == "loading" or not replica.is_alive:
                if replica.state != "loading":  # its process has exited, and `on_exit` is about to be called
                    await replica.has_crashed.wait()
                assert replica.loading is not None
                await asyncio.shield(replica.loading)
            if replica.failure is not None:
                failure = replica.failure  # a new exception: a shared one would collect the tracebacks of all calls
                raise Refused(failure.reason, failure.message, is_retryable=failure.is_retryable)
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

    @property
    def is_ready(self) -> bool:
        """True if the first wanted model can take calls, or no model is wanted."""
        return all(self.is_model_ready(model) for model in self._wanted[:1])

    def is_model_ready(self, model: str) -> bool:
        """Return True if any revision of `model` can take calls."""
        return any(replica.state == "ready" for replica in self._replicas.values() if replica.model == model)

    def statuses(self) -> tuple[ReplicaStatus, ...]:
        """Return the status of each replica, and of each wanted model that was not found."""
        known = tuple(_status(replica) for replica in self._replicas.values())
        models = {status.model for status in known}
        return known + tuple(
            ReplicaStatus(model=model, revision="", state="failed", detail=reason)
            for model, reason in self._not_found.items()
            if model not in models
        )

    def cancel_idle_loading(self) -> None:
        """Cancel the loading of models that no call waits for, because the process is about to exit."""
        for replica in [each for each in self._replicas.values() if each.state == "loading" and not each.num_calls]:
            del self._replicas[replica.model, replica.revision]  # a later call loads the model again
            if replica.loading is not None:
                self._keep_task(replica.loading)
                replica.loading.cancel()
        self._on_change()

    async def unload(self, model: str, *, waits: bool) -> None:
        """Unload all replicas of `model`, which is no longer wanted. A later call loads the model again.

        Raises Refused if the model is not loaded, or if calls use it. With `waits`, new calls are refused instead, and
        the model is unloaded once the last call has ended.
        """
        found = [replica for replica in self if replica.model == model]
        num_calls = sum(replica.num_calls for replica in found)
        if not found:
            raise Refused("model_unavailable", f"{model} is not loaded")
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
            self._forget_old_failures()
            replica = self._replicas[model, revision] = ModelReplica(model, revision)
            self._start_loading(replica, delay_s=0.0)
        elif replica.state == "failed" and self._may_retry(replica):
            self._start_loading(replica, delay_s=0.0)
        return replica

    def _forget_old_failures(self) -> None:
        failed = [each for each in self._replicas.values() if each.state == "failed" and not each.num_calls]
        for replica in sorted(failed, key=lambda each: each.failed_s)[: max(0, len(failed) - MAX_FAILED + 1)]:
            del self._replicas[replica.model, replica.revision]

    def _may_retry(self, replica: ModelReplica) -> bool:
        now = self._clock.monotonic_s()
        return not _is_crash_looping(replica, now) and now - replica.failed_s >= RETRY_FAILED_S

    def _start_loading(self, replica: ModelReplica, delay_s: float) -> None:
        replica.state = "loading"
        replica.failure = None
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
                await self._take_slot(replica)
                await self._load_files(replica, on_exit)
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
        metrics.MODEL_LOAD_SECONDS.labels(replica.model).observe(load_s)
        logger.info(
            "replica ready",
            extra={"model": replica.model, "revision": replica.revision, "load_s": round(load_s, 3)},
        )
        replica.state, replica.detail = "ready", ""
        replica.num_loads += 1
        self._on_change()

    async def _load_files(self, replica: ModelReplica, on_exit: Callable[[str], None]) -> None:
        local = await self._store.open(replica.model, replica.revision)
        replica.task = local.manifest.task
        try:
            replica.loaded = await self._loaders.load(local, on_exit)
        except BaseException:
            self._store.release(local.revision)
            raise

    def _fail(self, replica: ModelReplica, refused: Refused) -> None:
        replica.state, replica.detail = "failed", refused.failure.message
        replica.failure = refused.failure
        replica.has_slot = False
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

    async def _take_slot(self, newcomer: ModelReplica) -> None:
        """Unload the least recently used idle replicas until there is a slot. Raises Refused."""
        while not newcomer.has_slot:
            loaded = [each for each in self._replicas.values() if each.has_slot]
            if len(loaded) < self._max_replicas:
                newcomer.has_slot = True
                return
            idle = [each for each in loaded if each.state == "ready" and each.num_calls == 0]
            if not idle:
                raise Refused("out_of_capacity", "all loaded models are in use", is_retryable=True)
            evicted = min(idle, key=lambda each: each.last_used_s)
            self._wanted = [model for model in self._wanted if model != evicted.model]
            self._not_found.pop(evicted.model, None)
            await self._unload(evicted)

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
        loaded, replica.loaded = replica.loaded, None
        if loaded is not None:
            replica.state = "draining"
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

    def _in_background(self, work: Coroutine[None, None, None]) -> None:
        self._keep_task(asyncio.get_running_loop().create_task(work))

    def _keep_task(self, task: asyncio.Task[None]) -> None:
        """Hold a reference to the task until it ends."""
        self._background.add(task)
        task.add_done_callback(self._background.discard)


def _is_crash_looping(replica: ModelReplica, now: float) -> bool:
    crashes = replica.crashes
    return len(crashes) == MAX_CRASHES and now - crashes[0] < CRASH_WINDOW_S


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


def _status(replica: ModelReplica) -> ReplicaStatus:
    engine = replica.loaded.status() if replica.loaded is not None else EngineStatus()
    return ReplicaStatus(
        model=replica.model,
        revision=replica.revision,
        state=replica.state,
        num_running=engine.num_running,
        num_waiting=engine.num_waiting,
        queued_tokens=engine.queued_tokens,
        num_blocks=engine.num_blocks,
        num_free_blocks=engine.num_free_blocks,
        num_cached_blocks=engine.num_cached_blocks,
        num_computed_tokens=engine.num_computed_tokens,
        num_preemptions=engine.num_preemptions,
        num_steps=engine.num_steps,
        num_ranks=engine.num_ranks,
        busy_us=engine.busy_us,
        detail=replica.detail,
    )
