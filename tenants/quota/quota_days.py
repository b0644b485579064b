"""Which UTC day it is, for money: a day that never moves back, and that a clock which jumps does not bring early."""

from __future__ import annotations

from datetime import UTC, datetime

from telemetry.clock import Clock
from telemetry.steady_clock import SteadyClock


class QuotaCalendar:
    """The time of one process, by which days and months of quota begin."""

    def __init__(self, clock: Clock) -> None:
        self._steady = SteadyClock(clock)
        self._latest_day = self._steady.now().date()

    def now(self) -> datetime:
        """Aware UTC; at most a minute off the wall clock unless that has just jumped."""
        return self._steady.now()

    def day(self) -> datetime:
        """The first moment of the day; never before one that was given already."""
        self._latest_day = max(self._latest_day, self.now().date())
        return datetime(self._latest_day.year, self._latest_day.month, self._latest_day.day, tzinfo=UTC)
