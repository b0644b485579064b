"""UTC days for quotas and budgets. The day never moves back, and a clock jump does not start a day early."""

from __future__ import annotations

from datetime import UTC, datetime

from telemetry.clock import Clock
from telemetry.steady_clock import SteadyClock


class QuotaCalendar:
    """The calendar by which a process starts quota days and months."""

    def __init__(self, clock: Clock) -> None:
        self._steady = SteadyClock(clock)
        self._latest_day = self._steady.now().date()

    def now(self) -> datetime:
        """Return the time in UTC (timezone-aware). The time is within a minute of the wall clock, unless the wall
        clock has just jumped."""
        return self._steady.now()

    def day(self) -> datetime:
        """Return the start of the current day. Never returns an earlier day than before."""
        self._latest_day = max(self._latest_day, self.now().date())
        return datetime(self._latest_day.year, self._latest_day.month, self._latest_day.day, tzinfo=UTC)
