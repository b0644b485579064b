"""Speeds: how many tokens each replica computes per second, measured from the counters in the nodes' reports."""

from __future__ import annotations

from engine.protocol.status import NodeStatus
from gateway.nodes.candidate import DEFAULT_TOKENS_PER_S

MIN_BUSY_US = 20_000  # shorter times of work are added to the next report
MIN_TOKENS_PER_S = 1.0
_WEIGHT = 0.2  # weight of the newest measurement in the average


class Speeds:
    """Tokens per second of each model on each node, while its devices compute."""

    def __init__(self) -> None:
        self._counters: dict[str, dict[str, tuple[int, int]]] = {}  # node -> model -> (tokens, busy microseconds)
        self._speeds: dict[str, dict[str, float]] = {}

    def of(self, node_id: str, model: str) -> float:
        """Return the measured speed of a replica, or else that of a usual one."""
        speeds = self._speeds.get(node_id)
        return DEFAULT_TOKENS_PER_S if speeds is None else speeds.get(model, DEFAULT_TOKENS_PER_S)

    def add(self, status: NodeStatus) -> None:
        """Measure from the counters of a new report."""
        counters = self._counters.setdefault(status.node_id, {})
        for replica in status.replicas:
            if not replica.num_computed_tokens:
                continue
            busy_us = replica.busy_us // max(1, replica.num_ranks)
            before = counters.get(replica.model)
            counters[replica.model] = replica.num_computed_tokens, busy_us
            if before is None or busy_us < before[1] or replica.num_computed_tokens < before[0]:
                continue  # the first report, or the process was restarted
            if busy_us - before[1] < MIN_BUSY_US:
                counters[replica.model] = before
                continue
            speed = 1e6 * (replica.num_computed_tokens - before[0]) / (busy_us - before[1])
            speeds = self._speeds.setdefault(status.node_id, {})
            average = speeds.get(replica.model, speed)
            speeds[replica.model] = max(MIN_TOKENS_PER_S, average + _WEIGHT * (speed - average))

    def remove(self, node_id: str) -> None:
        """Forget a node."""
        self._counters.pop(node_id, None)
        self._speeds.pop(node_id, None)
