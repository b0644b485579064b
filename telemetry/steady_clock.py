"""Wall time that ignores short jumps of the system clock; for expiries and start times.

Follows the wall clock while it advances like the monotonic clock. After a jump, time continues from before the jump;
the new wall time is accepted after `ACCEPT_JUMP_AFTER_S`, because a wrong clock is usually corrected sooner.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from telemetry.clock import Clock

MAX_DRIFT_S = 60.0
ACCEPT_JUMP_AFTER_S = 900.0


class SteadyClock:
    """The steady time of one process. Call `now` regularly: drift of more than `MAX_DRIFT_S` between two calls counts
    as a jump."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.monotonic_s = clock.monotonic_s
        self._wall = clock.now()
        self._at_s = clock.monotonic_s()
        self._jumped_at_s: float | None = None

    def now(self) -> datetime:
        """Return aware UTC time, within `MAX_DRIFT_S` of the wall clock unless that has just jumped."""
        wall, at_s = self._clock.now(), self._clock.monotonic_s()
        passed_s = at_s - self._at_s
        if abs((wall - self._wall).total_seconds() - passed_s) <= MAX_DRIFT_S:
            self._jumped_at_s = None
            self._wall, self._at_s = wall, at_s
            return wall.astimezone(UTC)
        if self._jumped_at_s is None:
            self._jumped_at_s = at_s
        if at_s - self._jumped_at_s >= ACCEPT_JUMP_AFTER_S:
            self._jumped_at_s = None
            self._wall, self._at_s = wall, at_s
            return wall.astimezone(UTC)
        return (self._wall + timedelta(seconds=passed_s)).astimezone(UTC)
