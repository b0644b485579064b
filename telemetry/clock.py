"""Time, as the platform tells it.

Durations come from the monotonic clock; wall time is for stamps and expiry only. Everything that waits, expires or
measures takes a `Clock`, so that a test can hand in one that it moves by hand.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    def monotonic_s(self) -> float: ...

    def now(self) -> datetime: ...


class SystemClock:
    """The machine's own clocks."""

    monotonic_s = staticmethod(time.monotonic)  # itself: every call asks several times

    def now(self) -> datetime:
        """Aware UTC wall time."""
        return datetime.now(UTC)


SYSTEM_CLOCK = SystemClock()
