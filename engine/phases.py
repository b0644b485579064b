"""Phases of a load: how long each took, for logs and benchmarks."""

from __future__ import annotations

import time


class Phases:
    """Seconds by name of a phase. The first phase begins when the object is created."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last_s = time.perf_counter()

    def end(self, name: str) -> None:
        """End a phase, and begin the next one. A phase of the same name is added to."""
        now_s = time.perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + now_s - self._last_s
        self._last_s = now_s

    def skip(self) -> None:
        """Begin the next phase; the time since the last one ended counts to none."""
        self._last_s = time.perf_counter()

    def fields(self) -> dict[str, float]:
        """Return fields of a log line."""
        return {f"{name}_s": round(seconds, 3) for name, seconds in self.seconds.items()}
