"""NodeHealth: what this gateway has seen of one node's calls, and for how long the node gets no calls.

A circuit breaker with slow start. Consecutive failures eject the node for some seconds, longer each time. Afterwards,
and when a node is new, its share of calls grows from nearly nothing: one more failure ejects the node again. Pure
state on the caller's clock.
"""

from __future__ import annotations

import math

from msgspec import Struct

LATENESS_WEIGHT = 0.3  # weight of the newest call in the average
LATENESS_HALF_LIFE_S = 10.0
MIN_LATENESS_S = 0.001
MIN_SHARE = 0.02  # share of its usual calls that a node gets when its slow start begins
MIN_CALLS = 20  # calls of which the share of failures is judged
_WINDOW_S = 10.0


class HealthPolicy(Struct, frozen=True, kw_only=True):
    """When a node is ejected, and how it returns.

    | Field | Meaning |
    |---|---|
    | `max_failures` | consecutive failures that eject a node |
    | `max_failure_ratio` | share of failed calls in ten seconds, of at least 20, that ejects a node |
    | `ejection_s`, `max_ejection_s` | duration of the first ejection, which doubles each time, and the longest |
    | `slow_start_s` | seconds in which the share of a new or returning node grows to its full size; 0 disables it |
    """

    max_failures: int = 3
    max_failure_ratio: float = 0.5
    ejection_s: float = 5.0
    max_ejection_s: float = 60.0
    slow_start_s: float = 10.0


DEFAULT_HEALTH = HealthPolicy()


class NodeHealth:
    """Failures and lateness of one node. Times are in seconds of the caller's clock."""

    __slots__ = (
        "_late_at_s", "_lateness_s", "_num_calls", "_num_failures", "_policy", "_window_ends_s", "ejected_until_s",
        "num_consecutive_failures", "num_ejections", "settles_at_s", "was_late",
    )  # fmt: skip

    def __init__(self, policy: HealthPolicy = DEFAULT_HEALTH) -> None:
        self._policy = policy
        self.ejected_until_s = -math.inf
        self.settles_at_s = -math.inf  # end of the slow start
        self.was_late = False  # True while `lateness_s` may not be 0
        self.num_consecutive_failures = 0
        self.num_ejections = 0
        self._num_calls = self._num_failures = 0
        self._window_ends_s = -math.inf
        self._lateness_s = 0.0
        self._late_at_s = 0.0

    def start_slowly(self, now_s: float) -> None:
        """Begin the slow start of a node that is new or has returned."""
        self.settles_at_s = now_s + self._policy.slow_start_s
        self._lateness_s, self.was_late = 0.0, False

    def share(self, now_s: float) -> float:
        """Return the share of its calls that the node may have now, from nearly 0 to 1."""
        if now_s >= self.settles_at_s:
            return 1.0
        return max(MIN_SHARE, 1.0 - (self.settles_at_s - now_s) / self._policy.slow_start_s)

    def lateness_s(self, now_s: float) -> float:
        """Return by how many seconds first events of the node recently came later than predicted."""
        if not self.was_late:
            return 0.0
        return float(self._lateness_s * 0.5 ** ((now_s - self._late_at_s) / LATENESS_HALF_LIFE_S))

    def suspend(self, until_s: float) -> None:
        """Eject the node until then, without counting it as a failure and without slow start."""
        self.ejected_until_s = max(self.ejected_until_s, until_s)

    def record_first_event(self, late_s: float, now_s: float) -> None:
        """Record by how many seconds the first event of a call came later than predicted; 0 or less is in time."""
        if late_s <= 0 and not self.was_late:
            return
        before_s = self.lateness_s(now_s)
        average_s = before_s + LATENESS_WEIGHT * (max(0.0, late_s) - before_s)
        self.was_late = average_s > MIN_LATENESS_S
        self._lateness_s = average_s if self.was_late else 0.0
        self._late_at_s = now_s

    def record_success(self, now_s: float) -> None:
        """Record a call that the node served."""
        self._count(now_s)
        self.num_consecutive_failures = 0
        if self.num_ejections and now_s - self.ejected_until_s > self._policy.max_ejection_s:
            self.num_ejections = 0

    def record_failure(self, now_s: float) -> bool:
        """Record a call that failed because of the node. Return True if the node is ejected now."""
        self._count(now_s)
        self._num_failures += 1
        self.num_consecutive_failures += 1
        if now_s < self.ejected_until_s:
            return False
        is_failing = self._num_calls >= MIN_CALLS and (
            self._num_failures > self._policy.max_failure_ratio * self._num_calls
        )
        if self.num_consecutive_failures < self._policy.max_failures and not is_failing:
            return False
        # Counters are of the past now. One more failure after the ejection ejects the node again.
        self.num_consecutive_failures = self._policy.max_failures - 1
        self._num_calls = self._num_failures = 0
        duration_s = min(self._policy.max_ejection_s, self._policy.ejection_s * 2.0**self.num_ejections)
        self.num_ejections += 1
        self.ejected_until_s = now_s + duration_s
        self.start_slowly(self.ejected_until_s)
        return True

    def _count(self, now_s: float) -> None:
        if now_s >= self._window_ends_s:
            self._num_calls = self._num_failures = 0
            self._window_ends_s = now_s + _WINDOW_S
        self._num_calls += 1
