"""Retry-after estimates for concurrency limits, from how long slots were held recently.

Keeps an exponential moving average per limit, in which the newest value weighs one eighth.
"""

from __future__ import annotations

from telemetry.bounded_cache import BoundedCache

_WEIGHT = 1 / 8
_MAX_KEYS = 20_000
MIN_WAIT_S = 1.0
MAX_WAIT_S = 60.0


class ReleasePace:
    """The estimates of one gateway."""

    def __init__(self) -> None:
        self._mean_s: BoundedCache[str, float] = BoundedCache(_MAX_KEYS)

    def record(self, key: str, held_s: float) -> None:
        """Record that a slot was held for `held_s`."""
        mean_s = self._mean_s.get(key)
        self._mean_s.put(key, held_s if mean_s is None else mean_s + (held_s - mean_s) * _WEIGHT)

    def next_s(self, key: str, num_slots: int) -> float:
        """Return the expected seconds until one of `num_slots` used slots is released, between MIN_WAIT_S and
        MAX_WAIT_S."""
        return min(MAX_WAIT_S, max(MIN_WAIT_S, (self._mean_s.get(key) or 0.0) / max(1, num_slots)))
