"""Prometheus gauges of the replicas in this process."""

from __future__ import annotations

from collections.abc import Sequence

from engine.protocol.status import ReplicaStatus
from telemetry import metrics

_GAUGES = (
    metrics.REPLICA_RUNNING,
    metrics.REPLICA_WAITING,
    metrics.REPLICA_BLOCKS,
    metrics.REPLICA_COMPUTED_TOKENS,
    metrics.REPLICA_STEPS,
    metrics.REPLICA_BUSY,
    metrics.REPLICA_RANKS,
    metrics.REPLICA_PREEMPTIONS,
)


def export_replicas(replicas: Sequence[ReplicaStatus]) -> None:
    """Set the gauges to the current replicas."""
    for gauge in _GAUGES:
        gauge.clear()
    for replica in replicas:
        metrics.REPLICA_RUNNING.labels(replica.model).set(replica.num_running)
        metrics.REPLICA_WAITING.labels(replica.model).set(replica.num_waiting)
        metrics.REPLICA_COMPUTED_TOKENS.labels(replica.model).set(replica.num_computed_tokens)
        metrics.REPLICA_STEPS.labels(replica.model).set(replica.num_steps)
        metrics.REPLICA_BUSY.labels(replica.model).set(replica.busy_us / 1e6)
        metrics.REPLICA_RANKS.labels(replica.model).set(replica.num_ranks)
        metrics.REPLICA_PREEMPTIONS.labels(replica.model).set(replica.num_preemptions)
        in_use = replica.num_blocks - replica.num_free_blocks - replica.num_cached_blocks
        blocks = {"free": replica.num_free_blocks, "cached": replica.num_cached_blocks, "in_use": in_use}
        for state, count in blocks.items():
            metrics.REPLICA_BLOCKS.labels(replica.model, state).set(count)
