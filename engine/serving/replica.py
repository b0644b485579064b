"""One model revision on this machine: its state, its memory, its demand, and its status for gateways."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

from engine.protocol.events import Failed
from engine.protocol.status import ReplicaState, ReplicaStatus
from engine.report import EngineStatus
from engine.serving.busy_meter import BusyMeter
from engine.serving.replica_policy import IDLE_AFTER_S, Demand, Holding
from engine.tasks.work import TaskModel

MAX_CRASHES = 3


@dataclass(eq=False)
class LoadProgress:
    """Progress of a load. `num_bytes` of `size_bytes` have been downloaded since `started_s`; a size of 0 means
    that nothing is downloaded. `waits_for` names what the load waits for, if anything."""

    started_s: float = 0.0
    num_bytes: int = 0
    size_bytes: int = 0
    waits_for: str = ""

    def describe(self) -> str:
        """Return the progress in words."""
        if self.waits_for:
            return self.waits_for
        if self.num_bytes < self.size_bytes:
            return f"downloaded {self.num_bytes} of {self.size_bytes} bytes"
        return "loading into memory"

    def download_left_s(self, now_s: float) -> float:
        """Return the seconds that the download will still take at its speed so far; 0 if unknown."""
        if not self.num_bytes:
            return 0.0
        return (now_s - self.started_s) * (self.size_bytes - self.num_bytes) / self.num_bytes


@dataclass(eq=False)
class ModelReplica:
    """One model revision on this machine. `weight_bytes` and `kv_bytes` are estimates until it is loaded."""

    model: str
    revision: str
    state: ReplicaState = "cold"  # "idle" is only reported, see `status_of`
    detail: str = ""
    task: str = ""
    num_calls: int = 0  # calls that have acquired this replica
    num_loads: int = 0  # times this replica became ready
    last_used_s: float = 0.0
    loaded: TaskModel | None = None
    loading: asyncio.Task[None] | None = None
    progress: LoadProgress = field(default_factory=LoadProgress)
    failed_s: float = 0.0
    failure: Failed | None = None
    is_device_lost: bool = False  # loading failed because its device cannot create a context
    holds_memory: bool = False  # counts towards the memory budget
    weight_bytes: int = 0
    kv_bytes: int = 0
    reload_s: float = 0.0  # duration of the last load from local disk, 0 if there was none
    wake_s: float = 0.0  # duration of the last wake, 0 if it has not slept since it was loaded
    host_bytes: int = 0  # host memory that holds its weights while it sleeps, and sometimes for its next sleep
    device_bytes: int = 0  # device memory that it keeps while it sleeps
    falling_asleep: asyncio.Task[None] | None = None
    is_waking: bool = False
    demand: Demand = field(default_factory=Demand)
    busy_meter: BusyMeter = field(default_factory=BusyMeter)
    has_crashed: asyncio.Event = field(default_factory=asyncio.Event)
    crashes: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_CRASHES))  # monotonic seconds

    @property
    def is_alive(self) -> bool:
        """False if a process has exited, even if `on_exit` was not called yet."""
        return self.loaded is None or self.loaded.is_alive

    @property
    def return_s(self) -> float:
        """Expected seconds until it is ready again once its memory has gone to another model."""
        return self.wake_s or self.reload_s

    @property
    def task_model(self) -> TaskModel:
        """The loaded model; only valid while this replica is acquired."""
        assert self.loaded is not None, "only a ready replica can be acquired"
        return self.loaded

    def holding(self, now_s: float, *, is_pinned: bool) -> Holding:
        """Return what this replica holds, for the replica policy."""
        return Holding(
            self,
            self.weight_bytes + self.kv_bytes,
            demand=self.demand.per_minute(now_s),
            reload_s=self.return_s,
            last_used_s=self.last_used_s,
            is_pinned=is_pinned,
            is_busy=self.state != "ready" or self.num_calls > 0,
        )


def status_of(replica: ModelReplica, now_s: float, *, is_pinned: bool) -> ReplicaStatus:
    """Return the status that the node publishes. A ready model without calls for IDLE_AFTER_S is idle."""
    engine = replica.loaded.status() if replica.loaded is not None else EngineStatus()
    holds_memory = replica.loaded is not None and replica.state != "sleeping"
    is_idle = replica.state == "ready" and not replica.num_calls and now_s - replica.last_used_s >= IDLE_AFTER_S
    return ReplicaStatus(
        model=replica.model,
        revision=replica.revision,
        state="idle" if is_idle else replica.state,
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
        busy_ratio=replica.busy_meter.ratio(engine.busy_us, engine.num_ranks, now_s),
        weight_bytes=replica.weight_bytes if holds_memory else 0,
        kv_bytes=replica.kv_bytes if holds_memory else 0,
        num_prompt_tokens=engine.num_prompt_tokens,
        num_cached_tokens=engine.num_cached_tokens,
        detail=replica.progress.describe() if replica.state == "loading" and not replica.detail else replica.detail,
        is_pinned=is_pinned,
        demand=round(replica.demand.per_minute(now_s), 3),
        reload_s=round(replica.return_s, 3),
        host_bytes=replica.host_bytes,
    )
