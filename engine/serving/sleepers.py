"""Sleepers: replicas that were put to sleep instead of being evicted, within a budget of host memory.

A sleeping replica keeps its processes and CUDA graphs. Its weights are in host memory, its KV cache is gone, and its
device memory is free for other models. `replicas.py` decides when a replica sleeps and wakes.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable

from engine.report import SleepFailed, SleepReport
from engine.serving.replica import ModelReplica
from engine.serving.replica_policy import Holding, plan_sleep
from engine.serving.snapshots import Snapshots
from engine.tasks.work import Refused, Sleeper
from telemetry import metrics
from telemetry.clock import Clock

logger = logging.getLogger(__name__)


class Sleepers:
    """Puts replicas to sleep and wakes them. `budget_bytes` limits the host memory of their weights; 0 disables
    sleeping."""

    def __init__(self, budget_bytes: int, clock: Clock) -> None:
        self._budget_bytes = budget_bytes
        self._clock = clock
        self._snapshots = Snapshots()

    def plan(self, replica: ModelReplica, others: Iterable[ModelReplica]) -> tuple[ModelReplica, ...] | None:
        """Return the sleeping replicas to evict so that a ready one can sleep; None if it cannot."""
        if not self._budget_bytes or not _can_sleep(replica):
            return None
        held = [
            Holding(each, each.host_bytes, last_used_s=each.last_used_s, is_busy=not is_sound_asleep(each))
            for each in others
            if each.host_bytes and each is not replica
        ]
        keys = plan_sleep(replica.host_bytes or replica.weight_bytes, held, self._budget_bytes)
        return None if keys is None else tuple(each for each in keys if isinstance(each, ModelReplica))

    async def put_to_sleep(self, replica: ModelReplica) -> bool:
        """Let a replica give its memory back. Return False if it cannot; it is awake then. Raises ModelLoadError if its
        process ends."""
        sleeper = replica.loaded
        assert isinstance(sleeper, Sleeper), "only models that can sleep are put to sleep"
        try:
            report = await sleeper.sleep(self._snapshots.open(replica.revision, replica))
        except SleepFailed as error:
            logger.warning("model cannot sleep", extra={"model": replica.model, "reason": str(error)})
            return False
        _take(replica, report)
        metrics.MODEL_SLEEPS.labels(replica.model).inc()
        logger.info("replica asleep", extra={"model": replica.model, "host_bytes": report.host_bytes})
        return True

    async def wake(self, replica: ModelReplica, retry_after_s: float) -> None:
        """Wake a replica. Raises Refused if its memory is not free, and ModelLoadError if its process ends."""
        sleeper = replica.loaded
        assert isinstance(sleeper, Sleeper), "only models that can sleep are asleep"
        started_s = self._clock.monotonic_s()
        try:
            _take(replica, await sleeper.wake())
        except SleepFailed as error:
            raise no_memory(replica.model, str(error), retry_after_s) from error
        replica.wake_s = self._clock.monotonic_s() - started_s
        metrics.MODEL_WAKE_SECONDS.labels(replica.model).observe(replica.wake_s)

    def forget(self, replica: ModelReplica) -> None:
        """Free what a replica without processes holds for its sleep."""
        self._snapshots.close(replica.revision, replica)
        replica.host_bytes = replica.device_bytes = 0
        replica.wake_s = 0.0


def is_sound_asleep(replica: ModelReplica) -> bool:
    """Return True if a replica sleeps, and is not only about to."""
    return replica.state == "sleeping" and (replica.falling_asleep is None or replica.falling_asleep.done())


def no_memory(model: str, reason: str, retry_after_s: float) -> Refused:
    """Return the refusal of calls to a sleeping model that cannot wake."""
    message = f"{model} is asleep and cannot wake now: {reason}"
    return Refused("out_of_capacity", message, is_retryable=True, retry_after_s=math.ceil(retry_after_s))


def _can_sleep(replica: ModelReplica) -> bool:
    return isinstance(replica.loaded, Sleeper) and replica.loaded.can_sleep


def _take(replica: ModelReplica, report: SleepReport) -> None:
    replica.host_bytes, replica.device_bytes = report.host_bytes, report.device_bytes
