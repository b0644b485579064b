"""Which models are loaded here: made hot at start or on demand, brought back after a crash, let go when idle.

    loading ──► hot ──► (gone)          idle, and another model needs the place
       ▲         │ crash
       └─ pause ◄┘                      a growing one; after three crashes in five minutes: failed until they age,
                                        but for those that were some call's fault, which is then refused instead

One model version is one Resident. Loading is done once, however many calls wait for it. How a task's model is loaded is
the business of `loaders.py`; where its files come from, of `model_store.py`.
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
from engine.serving.loaders import LoadFailed
from engine.serving.model_store import FindsModels, LocalModel, ModelUnavailable
from engine.tasks.work import Refused, TaskModel
from storage.errors import StoreError
from telemetry import metrics
from telemetry.clock import SYSTEM_CLOCK, Clock

logger = logging.getLogger(__name__)

FIRST_RESTART_S = 0.05
MAX_RESTART_S = 30.0
MAX_CRASHES = 3
CRASH_WINDOW_S = 300.0
RETRY_FAILED_S = 2.0  # a model that could not be loaded is refused this long before it is tried again
MAX_RETRY_S = 30.0
MAX_FAILED = 32  # failures remembered


class LoadsModels(Protocol):
    async def load(self, model: LocalModel, on_exit: Callable[[str], None]) -> TaskModel: ...


@dataclass(eq=False)
class Resident:
    """One model version that this node holds, is getting, or could not get."""

    model: str
    revision: str
    state: ReplicaState = "loading"
    detail: str = ""
    task: str = ""
    num_calls: int = 0  # that hold it
    num_loads: int = 0  # times it became hot
    last_used_s: float = 0.0
    has_place: bool = False  # counts among the replicas that may be loaded at once
    loaded: TaskModel | None = None
    job: asyncio.Task[None] | None = None  # getting it
    failed_s: float = 0.0
    failure: Failed | None = None
    has_crashed: asyncio.Event = field(default_factory=asyncio.Event)
    crashes: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_CRASHES))
    excuse: str = ""  # why the crash whose news is on its way does not count

    @property
    def is_alive(self) -> bool:
        """Whether nothing is known to be wrong with it."""
        return self.loaded is None or self.loaded.is_alive

    @property
    def ready_model(self) -> TaskModel:
        assert self.loaded is not None, "only a hot resident is given to calls"
        return self.loaded


class Replicas:
    """The residents of this node, at most `max_replicas` of them loaded.

    `wanted` are the models to keep hot; one that had to make place for another is not wanted any more, one that cannot
    even be found counts as failed. `on_change` is called whenever a resident's state changed.
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
        self._residents: dict[tuple[str, str], Resident] = {}
        self._wanted = list(wanted)
        self._not_found: dict[str, str] = {}  # wanted model -> why no revision of it is known
        self._background: set[asyncio.Task[None]] = set()
        self._is_closing = False

    async def keep_hot(self) -> None:
        """Make each wanted model hot, in their order, and again whenever one failed; until cancelled."""
        pauses_s = dict.fromkeys(self._wanted, RETRY_FAILED_S)
        next_try_s = dict.fromkeys(self._wanted, 0.0)
        while True:
            for model in list(self._wanted):
                if self.is_hot(model):
                    pauses_s[model] = RETRY_FAILED_S
                elif self._clock.monotonic_s() >= next_try_s[model]:
                    with contextlib.suppress(Refused):
                        await self.acquire_current(model)
                    next_try_s[model] = self._clock.monotonic_s() + pauses_s[model]
                    pauses_s[model] = min(MAX_RETRY_S, pauses_s[model] * 2)
            await asyncio.sleep(RETRY_FAILED_S * random.uniform(0.5, 1.0))  # noqa: S311 - spreads nodes, guards nothing

    async def acquire_current(self, model: str) -> None:
        """Make the current revision of `model` hot. Raises Refused."""
        try:
            with _as_refusal(model):
                revision = await self._store.current_revision(model)
        except Refused as refusal:
            self._say_not_found(model, refusal.failure)
            raise
        self._not_found.pop(model, None)
        self.release(await self.acquire(model, revision))

    async def acquire(self, model: str, revision: str, task: str = "") -> Resident:
        """The model, hot, held until `release`; waits while it loads. Raises Refused."""
        resident = self._find_or_load(model, revision)
        resident.num_calls += 1
        resident.last_used_s = self._clock.monotonic_s()
        try:
            while resident.state == "loading" or not resident.is_alive:
                if resident.state == "hot":  # its process is gone, and the news on its way
                    await resident.has_crashed.wait()
                assert resident.job is not None
                await asyncio.shield(resident.job)
            if resident.failure is not None:
                failure = resident.failure  # raised anew: one exception for all would hold on to every call it ended
                raise Refused(failure.reason, failure.message, is_retryable=failure.is_retryable)
            if task and resident.task != task:
                raise Refused("invalid_input", f"{model} does {resident.task}, not {task}")
        except BaseException:
            resident.num_calls -= 1
            raise
        return resident

    def release(self, resident: Resident) -> None:
        """One call less needs it."""
        resident.num_calls -= 1
        resident.last_used_s = self._clock.monotonic_s()

    @property
    def is_ready(self) -> bool:
        """Whether the first of the wanted models can take calls, or none is wanted."""
        return all(self.is_hot(model) for model in self._wanted[:1])

    def is_hot(self, model: str) -> bool:
        """Whether any revision of `model` can take calls now."""
        return any(each.state == "hot" for each in self._residents.values() if each.model == model)

    def statuses(self) -> tuple[ReplicaStatus, ...]:
        """What the node says of its residents."""
        known = tuple(_status(resident) for resident in self._residents.values())
        models = {status.model for status in known}
        return known + tuple(_not_found(model, why) for model, why in self._not_found.items() if model not in models)

    def end_idle_loading(self) -> None:
        """The node is about to leave: a model that is loading, and that no call waits for, would serve nobody."""
        for resident in [each for each in self._residents.values() if each.state == "loading" and not each.num_calls]:
            del self._residents[resident.model, resident.revision]  # a call that comes all the same has it loaded anew
            if resident.job is not None:
                self._keep(resident.job)
                resident.job.cancel()
        self._on_change()

    async def close(self) -> None:
        """End every model's processes; loading stops."""
        self._is_closing = True
        jobs = [resident.job for resident in self._residents.values() if resident.job is not None]
        for job in (*jobs, *self._background):
            job.cancel()
        await asyncio.gather(*jobs, *self._background, return_exceptions=True)
        await asyncio.gather(*(self._unload(resident) for resident in list(self._residents.values())))

    # ── loading ──

    def _find_or_load(self, model: str, revision: str) -> Resident:
        resident = self._residents.get((model, revision))
        if resident is None:
            self._forget_old_failures()
            resident = self._residents[model, revision] = Resident(model, revision)
            self._begin_loading(resident, after_s=0.0)
        elif resident.state == "failed" and self._may_try_again(resident):
            self._begin_loading(resident, after_s=0.0)
        return resident

    def _forget_old_failures(self) -> None:
        failed = [each for each in self._residents.values() if each.state == "failed" and not each.num_calls]
        for resident in sorted(failed, key=lambda each: each.failed_s)[: max(0, len(failed) - MAX_FAILED + 1)]:
            del self._residents[resident.model, resident.revision]

    def _may_try_again(self, resident: Resident) -> bool:
        now = self._clock.monotonic_s()
        if _is_crashing(resident, now):
            return False
        return now - resident.failed_s >= RETRY_FAILED_S

    def _begin_loading(self, resident: Resident, after_s: float) -> None:
        resident.state = "loading"
        resident.failure = None
        resident.has_crashed.clear()
        resident.job = asyncio.create_task(self._load(resident, after_s))
        self._on_change()

    async def _load(self, resident: Resident, after_s: float) -> None:
        """Until the resident is hot or failed; raises nothing but cancellation."""
        await asyncio.sleep(after_s)
        started_s = self._clock.monotonic_s()
        died: list[str] = []

        def on_exit(how: str) -> None:
            died.append(how)
            self._on_crash(resident, how)

        try:
            with _as_refusal(resident.model):
                await self._make_place(resident)
                await self._make_hot(resident, on_exit)
        except Refused as refusal:
            self._fail(resident, refusal)
            return
        except Exception:  # one model's bug must not leave its calls waiting
            logger.exception("a model could not be loaded", extra={"model": resident.model})
            self._fail(resident, Refused("internal", "the model could not be loaded; the node's log says why"))
            return
        if died:  # while its tokenizer was still being read
            self._on_crash(resident, died[0])
            return
        load_s = self._clock.monotonic_s() - started_s
        metrics.MODEL_LOAD_SECONDS.labels(resident.model).observe(load_s)
        logger.info("model is hot", extra={"model": resident.model, "load_s": round(load_s, 3)})
        resident.state, resident.detail = "hot", ""
        resident.num_loads += 1
        self._on_change()

    async def _make_hot(self, resident: Resident, on_exit: Callable[[str], None]) -> None:
        local = await self._store.open(resident.model, resident.revision)
        resident.task = local.manifest.task
        try:
            resident.loaded = await self._loaders.load(local, on_exit)
        except BaseException:
            self._store.release(local.revision)
            raise

    def _fail(self, resident: Resident, refusal: Refused) -> None:
        resident.state, resident.detail = "failed", refusal.failure.message
        resident.failure = refusal.failure
        resident.has_place = False
        resident.failed_s = self._clock.monotonic_s()
        metrics.MODEL_FAILURES.labels(refusal.failure.reason).inc()
        logger.error("model is not available", extra={"model": resident.model, "why": refusal.failure.message})
        self._on_change()

    def _say_not_found(self, model: str, failure: Failed) -> None:
        """Have the node's status say why a wanted model is not here; once, however often it is looked for."""
        if self._not_found.get(model) != failure.message:
            self._not_found[model] = failure.message
            metrics.MODEL_FAILURES.labels(failure.reason).inc()
            logger.error("model is not available", extra={"model": model, "why": failure.message})
            self._on_change()

    async def _make_place(self, newcomer: Resident) -> None:
        """Let idle models go until there is a place. Raises Refused."""
        while not newcomer.has_place:
            placed = [each for each in self._residents.values() if each.has_place]
            if len(placed) < self._max_replicas:
                newcomer.has_place = True
                return
            idle = [each for each in placed if each.state == "hot" and each.num_calls == 0]
            if not idle:
                raise Refused("out_of_capacity", "every model loaded here is in use", is_retryable=True)
            leaving = min(idle, key=lambda each: each.last_used_s)
            self._wanted = [model for model in self._wanted if model != leaving.model]
            self._not_found.pop(leaving.model, None)
            await self._unload(leaving)

    async def _unload(self, resident: Resident) -> None:
        """Forget the resident and end its processes."""
        self._residents.pop((resident.model, resident.revision), None)
        loaded, resident.loaded = resident.loaded, None
        if loaded is not None:
            resident.state = "draining"
            logger.info("model unloaded", extra={"model": resident.model})
            await loaded.close()
            self._store.release(resident.revision)
        self._on_change()

    # ── crashes ──

    def excuse(self, resident: Resident, num_crashes: int, why: str) -> None:
        """Its latest crashes, that of which the news is still to come included, are not held against the model: their
        cause is known and does not come again."""
        if resident.loaded is not None:
            resident.excuse = why
            num_crashes -= 1
        for _ in range(min(num_crashes, len(resident.crashes))):
            resident.crashes.pop()
        if resident.state == "failed" and not self._is_closing and resident.job is not None and resident.job.done():
            self._begin_loading(resident, after_s=FIRST_RESTART_S)

    def _on_crash(self, resident: Resident, how: str) -> None:
        """The model's process ended by itself: bring it back, unless that keeps happening."""
        if self._is_closing or resident.loaded is None:
            return
        now = self._clock.monotonic_s()
        excuse, resident.excuse = resident.excuse, ""
        if not excuse:
            resident.crashes.append(now)
        resident.has_crashed.set()
        metrics.RANK_RESTARTS.labels(resident.model).inc()
        crashed, resident.loaded = resident.loaded, None
        self._in_background(crashed.close())
        self._store.release(resident.revision)
        if _is_crashing(resident, now):
            message = f"the model crashed {MAX_CRASHES} times in {CRASH_WINDOW_S / 60:g} minutes; last: {how}"
            self._fail(resident, Refused("model_unavailable", message, is_retryable=True))
            return
        num_recent = sum(now - at < CRASH_WINDOW_S for at in resident.crashes)
        after_s = min(MAX_RESTART_S, FIRST_RESTART_S * 10 ** max(0, num_recent - 1))
        how = f"{how}; {excuse}" if excuse else how
        logger.error("model crashed", extra={"model": resident.model, "how": how, "restart_in_s": after_s})
        resident.detail = how
        self._begin_loading(resident, after_s)

    def _in_background(self, work: Coroutine[None, None, None]) -> None:
        self._keep(asyncio.get_running_loop().create_task(work))

    def _keep(self, task: asyncio.Task[None]) -> None:
        """Until it ends, or all is closed."""
        self._background.add(task)
        task.add_done_callback(self._background.discard)


def _is_crashing(resident: Resident, now: float) -> bool:
    crashes = resident.crashes
    return len(crashes) == MAX_CRASHES and now - crashes[0] < CRASH_WINDOW_S


@contextlib.contextmanager
def _as_refusal(model: str) -> Iterator[None]:
    """What keeps a model from being loaded, as what a call is told."""
    try:
        yield
    except (ModelUnavailable, LoadFailed, CardError) as error:
        raise Refused("model_unavailable", str(error), is_retryable=True) from error
    except CacheFull as error:
        raise Refused("out_of_capacity", str(error), is_retryable=True) from error
    except StoreError as error:
        raise Refused("out_of_capacity", f"the files of {model} cannot be fetched now", is_retryable=True) from error
    except OSError as error:
        raise Refused("model_unavailable", f"the files of {model} cannot be read here", is_retryable=True) from error


def _not_found(model: str, why: str) -> ReplicaStatus:
    return ReplicaStatus(model=model, revision="", state="failed", detail=why)


def _status(resident: Resident) -> ReplicaStatus:
    engine = resident.loaded.status() if resident.loaded is not None else EngineStatus()
    return ReplicaStatus(
        model=resident.model,
        revision=resident.revision,
        state=resident.state,
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
        detail=resident.detail,
    )
