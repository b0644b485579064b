"""A clock that a test advances by hand. Its wall time can jump without its monotonic time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


class HandClock:
    def __init__(self) -> None:
        self._monotonic_s = 1000.0
        self._now = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)

    def monotonic_s(self) -> float:
        return self._monotonic_s

    def now(self) -> datetime:
        return self._now

    def pass_time(self, seconds: float) -> None:
        self._monotonic_s += seconds
        self._now += timedelta(seconds=seconds)

    def jump_wall(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)
