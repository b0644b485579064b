"""Failover: budgets for second attempts, and the time after which a call is hedged.

A budget limits retries and hedges to a share of the calls, so that they cannot multiply the load of an outage. Knows
no nodes and no calls.
"""

from __future__ import annotations

from collections import deque

from gateway.failover_settings import FailoverSettings
from telemetry.bounded_cache import BoundedCache

HEDGE_BURST = 5.0  # hedges that are allowed at once
MIN_SAMPLES = 32  # first events of a model before its calls are hedged
_MAX_SAMPLES = 128
_MAX_MODELS = 1024
_UPDATE_INTERVAL = 16  # samples between two computations of the percentile
_SLOWEST_SHARE = 0.05


class AttemptBudget:
    """A token bucket: each call adds `ratio`, each second attempt takes 1. Starts with `burst`, its largest content."""

    def __init__(self, ratio: float, burst: float) -> None:
        self._ratio = ratio
        self._burst = burst
        self._balance = burst

    def add_call(self) -> None:
        """Count a call."""
        self._balance = min(self._burst, self._balance + self._ratio)

    @property
    def is_empty(self) -> bool:
        """True if no second attempt is allowed now."""
        return self._balance < 1.0

    def take(self) -> bool:
        """Take one attempt from the budget. Return False if the budget is empty."""
        if self._balance < 1.0:
            return False
        self._balance -= 1.0
        return True


class FirstEventTimes:
    """The seconds from sending calls of one model to their first events."""

    def __init__(self) -> None:
        self._samples: deque[float] = deque(maxlen=_MAX_SAMPLES)
        self._num_new = 0
        self.slow_s = 0.0  # 95th percentile; 0 before MIN_SAMPLES

    def add(self, seconds: float) -> None:
        self._samples.append(seconds)
        self._num_new += 1
        if len(self._samples) >= MIN_SAMPLES and self._num_new >= _UPDATE_INTERVAL:
            self._num_new = 0
            ordered = sorted(self._samples)
            self.slow_s = ordered[-1 - int(_SLOWEST_SHARE * len(ordered))]


class Failover:
    """The budgets of this gateway and the usual times to the first event."""

    def __init__(self, settings: FailoverSettings) -> None:
        self._settings = settings
        self.retries = AttemptBudget(settings.retry_budget, settings.retry_burst)
        self.hedges = AttemptBudget(settings.hedge_budget, HEDGE_BURST if settings.hedge_budget else 0.0)
        self._times: BoundedCache[str, FirstEventTimes] = BoundedCache(_MAX_MODELS)

    def add_call(self) -> None:
        """Count a call."""
        self.retries.add_call()
        self.hedges.add_call()

    def take_hedge(self) -> bool:
        """Take one hedge from both budgets. Return False if one is empty."""
        return not self.retries.is_empty and self.hedges.take() and self.retries.take()

    def add_first_event(self, model: str, seconds: float) -> None:
        """Record the time from sending a call to its first event."""
        times = self._times.get(model)
        if times is None:
            times = FirstEventTimes()
            self._times.put(model, times)
        times.add(seconds)

    def hedge_delay_s(self, model: str, num_bytes: int, *, is_batch: bool) -> float | None:
        """Return the seconds without an event after which a call is hedged, or None for a call that is not hedged."""
        settings = self._settings
        if not settings.hedge_after_s or is_batch or not 0 < num_bytes <= settings.hedge_max_bytes:
            return None
        times = self._times.get(model)
        return max(settings.hedge_after_s, 2 * times.slow_s) if times is not None and times.slow_s else None
