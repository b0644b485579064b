"""A cache with a bounded number of entries and, optionally, a time to live."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedCache(Generic[K, V]):
    """A mapping of at most `max_entries`: adding one more evicts the least recently used entry.

    With `ttl_s`, an entry also expires that long after it was put, and the oldest entry is evicted first. `now_s` is
    the clock for expiry. Values must not be None. Not thread-safe.
    """

    def __init__(
        self, max_entries: int, *, ttl_s: float = math.inf, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_entries = max_entries
        self._ttl_s = ttl_s
        self._has_ttl = ttl_s != math.inf
        self._now_s = now_s
        self._entries: OrderedDict[K, V] = OrderedDict()  # the next entry to evict first
        self._put_s: dict[K, float] = {}  # with a TTL only: when each entry was put

    def __len__(self) -> int:
        if self._has_ttl:
            self._evict_expired()
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        if self._has_ttl:
            self._evict_expired()
        return key in self._entries

    def __iter__(self) -> Iterator[K]:
        return iter(self._entries)

    def get(self, key: K) -> V | None:
        """Return the value of `key`, or None if there is none or the entry has expired."""
        if self._has_ttl:
            self._evict_expired()
            return self._entries.get(key)
        value = self._entries.get(key)
        if value is not None:
            self._entries.move_to_end(key)
        return value

    def put(self, key: K, value: V) -> None:
        """Add or replace the value of `key`; its time to live starts again."""
        entries = self._entries
        if self._has_ttl:
            self._evict_expired()
            self._put_s[key] = self._now_s()
        entries[key] = value
        entries.move_to_end(key)
        if len(entries) > self._max_entries:
            evicted, _ = entries.popitem(last=False)
            self._put_s.pop(evicted, None)

    def pop(self, key: K) -> V | None:
        """Remove `key` and return its value, or None if there is none or the entry has expired."""
        if self._has_ttl:
            self._evict_expired()
            self._put_s.pop(key, None)
        return self._entries.pop(key, None)

    def remove_if(self, condition: Callable[[K, V], bool]) -> None:
        """Remove every entry for which `condition(key, value)` is true."""
        for key in [key for key, value in self._entries.items() if condition(key, value)]:
            del self._entries[key]
            self._put_s.pop(key, None)

    def clear(self) -> None:
        self._entries.clear()
        self._put_s.clear()

    def _evict_expired(self) -> None:
        oldest_s = self._now_s() - self._ttl_s
        while self._put_s:
            key = next(iter(self._entries))
            if self._put_s[key] > oldest_s:
                return
            del self._entries[key], self._put_s[key]
