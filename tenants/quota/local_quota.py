"""Limits while Redis is unavailable: each gateway enforces its own share, starting from the last state that Redis
reported.

The shares stay in force for a short time after Redis has recovered, because other gateways may not have reported their
calls yet. Reported windows are remembered until they end, and are also used to restore a Redis that lost its data.
Times are monotonic.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tenants.quota.limits import Item

_PRUNE_ABOVE = 10_000


@dataclass(slots=True)
class Seen:
    """A window as last reported by Redis."""

    item: Item
    used: int
    ends_s: float


@dataclass(slots=True)
class _Share:
    """This gateway's share of a window while Redis is unavailable."""

    size: int
    used: int
    ends_s: float


class LocalQuota:
    """The local state of one gateway. Limits are divided by `num_gateways`."""

    def __init__(self) -> None:
        self.num_gateways = 1
        self.seen: dict[str, Seen] = {}
        self._shares: dict[str, _Share] = {}
        self._shares_until_s: float | None = None  # set while Redis is available and the shares are still in force
        self._calls: dict[str, int] = {}
        self._prune_at = _PRUNE_ABOVE

    def record(self, item: Item, used: int, ends_s: float, now_s: float) -> None:
        """Remember the state of a window that Redis reported."""
        found = self.seen.get(item.key)
        if found is None:
            self.seen[item.key] = Seen(item, used, ends_s)
            if len(self.seen) > self._prune_at:
                self.forget_ended(now_s)
        elif used > found.used or ends_s > found.ends_s + 0.5:  # replies about one window may arrive out of order
            found.item, found.used, found.ends_s = item, used, ends_s

    def forget_ended(self, now_s: float) -> None:
        """Drop the windows that have ended."""
        self.seen = {key: seen for key, seen in self.seen.items() if seen.ends_s > now_s}
        self._shares = {key: share for key, share in self._shares.items() if share.ends_s > now_s}
        self._prune_at = max(_PRUNE_ABOVE, 2 * len(self.seen))

    def open_windows(self, now_s: float) -> list[Seen]:
        return [seen for seen in self.seen.values() if seen.ends_s > now_s]

    def begin_call(self, items: Iterable[Item]) -> None:
        """Count a running call, whether Redis or this gateway admitted it."""
        for item in items:
            if item.kind == "c":
                self._calls[item.key] = self._calls.get(item.key, 0) + 1

    def end_call(self, items: Iterable[Item]) -> None:
        for item in items:
            if item.kind == "c":
                left = self._calls.get(item.key, 0) - 1
                if left > 0:
                    self._calls[item.key] = left
                else:
                    self._calls.pop(item.key, None)

    def take(self, items: Sequence[Item], tokens: int, now_s: float) -> tuple[Item, float] | None:
        """Take one call's quota from this gateway's shares, or return the rejecting item and the seconds to wait."""
        shares = {item.key: self._share(item, now_s) for item in items if item.kind in "rt"}
        exceeded: list[tuple[float, Item]] = []
        for item in items:
            if item.kind == "c" and self._calls.get(item.key, 0) >= max(1, item.limit // self.num_gateways):
                exceeded.append((1.0, item))
            share = shares.get(item.key)
            if share is not None and share.used + _cost(item, tokens, share.size) > share.size:
                exceeded.append((share.ends_s - now_s, item))
        if exceeded:
            wait_s, item = max(exceeded, key=lambda entry: entry[0])
            return item, wait_s
        for item in items:
            share = shares.get(item.key)
            if share is not None:
                share.used += _cost(item, tokens, share.size)
        return None

    def state_of(self, item: Item, now_s: float) -> tuple[int, float]:
        """Return how much of the whole limit counts as used, and the seconds until the window ends."""
        share = self._share(item, now_s)
        return item.limit - (share.size - share.used), share.ends_s - now_s

    def on_redis_unavailable(self) -> None:
        """Keep the shares in force until `on_redis_recovered`."""
        self._shares_until_s = None

    def on_redis_recovered(self, shares_until_s: float) -> None:
        """Keep the shares in force until `shares_until_s`."""
        self._shares_until_s = shares_until_s

    def shares_left_s(self, now_s: float) -> float:
        """Return for how many seconds the shares of an outage that has ended stay in force, and drop them at their
        end.
        """
        if self._shares_until_s is None:
            return 0.0
        if now_s < self._shares_until_s:
            return self._shares_until_s - now_s
        self.drop_shares()
        return 0.0

    def drop_shares(self) -> None:
        """Let Redis alone decide."""
        self._shares_until_s = None
        self._shares.clear()

    def _share(self, item: Item, now_s: float) -> _Share:
        share = self._shares.get(item.key)
        if share is None or share.ends_s <= now_s:
            seen = self.seen.get(item.key)
            if share is None and seen is not None and seen.ends_s > now_s:
                size = max(0, item.limit - seen.used) // self.num_gateways
                share = _Share(size, 0, seen.ends_s)
            else:
                share = _Share(max(1, item.limit // self.num_gateways), 0, now_s + item.span_ms / 1000)
            self._shares[item.key] = share
            if len(self._shares) > 2 * self._prune_at:
                self.forget_ended(now_s)
        return share


def _cost(item: Item, tokens: int, size: int) -> int:
    """Return the amount that a call uses of a window. A call that needs more than the whole window takes all of it."""
    return 1 if item.kind == "r" else max(1, min(tokens, size))
