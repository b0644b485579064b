"""BusyMeter: the part of the time in which a replica's devices computed."""

from __future__ import annotations

MIN_WINDOW_S = 0.9  # statuses are published once a second, and more often when they change


class BusyMeter:
    """Turns a growing count of busy microseconds into a ratio over the last window."""

    def __init__(self) -> None:
        self._since_s: float | None = None
        self._before_us = 0
        self._ratio = 0.0

    def ratio(self, busy_us: int, num_ranks: int, now_s: float) -> float:
        """Return the busy ratio over the last complete window of at least MIN_WINDOW_S seconds, from 0 to 1."""
        if self._since_s is None or busy_us < self._before_us:  # the process has been started again
            self._since_s, self._before_us, self._ratio = now_s, busy_us, 0.0
        elif now_s - self._since_s >= MIN_WINDOW_S:
            busy_s = (busy_us - self._before_us) / 1e6 / num_ranks
            self._ratio = round(min(1.0, busy_s / (now_s - self._since_s)), 3)
            self._since_s, self._before_us = now_s, busy_us
        return self._ratio
