"""Wall time that does not follow a clock which jumps: for what begins or ends at a time.

The wall clock is followed as long as it runs like the monotonic one. When it jumps, the time goes on as before, and the
jump is believed only once it has lasted: a clock that was set right stays as it is, one that went wrong is set back.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from telemetry.clock import Clock

MAX_DRIFT_S = 60.0
BELIEVED_AFTER_S = 900.0


class SteadyClock:
    """The time of one process, over the clock that its machine has. What is not asked for longer than a clock drifts
    by a minute takes the drift for a jump: ask now and then."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.monotonic_s = clock.monotonic_s
        self._wall = clock.now()
        self._at_s = clock.monotonic_s()
        self._jumped_at_s: float | None = None

    def now(self) -> datetime:
        """Aware UTC; at most a minute off the wall clock unless that has just jumped."""
        wall, at_s = self._clock.now(), self._clock.monotonic_s()
        passed_s = at_s - self._at_s
        if abs((wall - self._wall).total_seconds() - passed_s) <= MAX_DRIFT_S:
            self._jumped_at_s = None
            self._wall, self._at_s = wall, at_s
            return wall.astimezone(UTC)
        if self._jumped_at_s is None:
            self._jumped_at_s = at_s
        if at_s - self._jumped_at_s >= BELIEVED_AFTER_S:
            self._jumped_at_s = None
            self._wall, self._at_s = wall, at_s
            return wall.astimezone(UTC)
        return (self._wall + timedelta(seconds=passed_s)).astimezone(UTC)
