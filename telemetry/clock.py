"""The clock interface. Durations use the monotonic clock; wall time is for timestamps and expiry only.

Code that waits, expires or measures takes a `Clock`, so that tests can pass one that they advance by hand.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    def monotonic_s(self) -> float: ...

    def now(self) -> datetime: ...


class SystemClock:
    """The system clocks."""

    monotonic_s = staticmethod(time.monotonic)  # no wrapper: called several times per inference call

    def now(self) -> datetime:
        """Return aware UTC wall time."""
        return datetime.now(UTC)


SYSTEM_CLOCK = SystemClock()
