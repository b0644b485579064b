"""Replies whose client asked for them again: they were of no use, whatever we thought of them.

Official clients say in a header that a request is a retry; its body is then, byte for byte, that of the one before. One
gateway's memory, of ten minutes: a reply that another gateway gave stays counted as useful.
"""

from __future__ import annotations

from collections import OrderedDict

from gateway.call import Call
from telemetry.clock import Clock

RETRY_HEADER = b"x-stainless-retry-count"
KEPT_S = 600.0
MAX_REPLIES = 20_000


class UsefulReplies:
    """Of this gateway, lately."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._given_s: OrderedDict[tuple[str, int], float] = OrderedDict()  # oldest first

    def add(self, call: Call) -> None:
        """It was given a reply that counts as useful."""
        now_s = self._clock.monotonic_s()
        while self._given_s and next(iter(self._given_s.values())) <= now_s - KEPT_S:
            self._given_s.popitem(last=False)
        key = (call.principal.api_token_id, call.body_hash)
        self._given_s[key] = now_s
        self._given_s.move_to_end(key)
        if len(self._given_s) > MAX_REPLIES:
            self._given_s.popitem(last=False)

    def num_retried(self, call: Call) -> int:
        """How many of them this call shows to have been useless: 0 or 1. Each is told once."""
        if not call.is_retry:
            return 0
        given_s = self._given_s.pop((call.principal.api_token_id, call.body_hash), None)
        return int(given_s is not None and given_s > self._clock.monotonic_s() - KEPT_S)
