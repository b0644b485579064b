"""How fast places become free: what a caller is told to wait who finds them all taken.

Of each kind of place, how long the last ones were held; a newer one weighs an eighth. Knows keys and seconds.
"""

from __future__ import annotations

_WEIGHT = 1 / 8
_MAX_KEYS = 20_000
MIN_WAIT_S = 1.0
MAX_WAIT_S = 60.0


class ReleasePace:
    """One process's view."""

    def __init__(self) -> None:
        self._mean_s: dict[str, float] = {}

    def saw(self, key: str, held_s: float) -> None:
        """A place was held for so long."""
        mean_s = self._mean_s.get(key)
        if mean_s is None:
            if len(self._mean_s) >= _MAX_KEYS:
                self._mean_s.clear()
            self._mean_s[key] = held_s
        else:
            self._mean_s[key] = mean_s + (held_s - mean_s) * _WEIGHT

    def next_s(self, key: str, num_places: int) -> float:
        """Until one of so many becomes free, all of them taken: as long as one is held, by their number; at least
        MIN_WAIT_S, which it is too where none was seen yet."""
        return min(MAX_WAIT_S, max(MIN_WAIT_S, self._mean_s.get(key, 0.0) / max(1, num_places)))
