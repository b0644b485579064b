"""Replies whose client asked for them again: they were of no use, whatever we thought of them.

Official clients say in a header that a request is a retry, and before that, that it is none; its body is then, byte for
byte, that of the one before. Redis remembers for ten minutes, so that it does not matter which gateway gave the reply:
what is asked of it rides with other commands, and no call waits for it. While Redis is away, and for accounts of which
nothing may be kept there, it is one gateway's memory. Bodies are known by a keyed hash alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Callable
from typing import Protocol

from gateway.call import Call
from storage.errors import StoreUnavailable
from storage.redis_link import Reply, command
from telemetry.bounded_cache import BoundedCache
from telemetry.clock import Clock

RETRY_HEADER = b"x-stainless-retry-count"
KEPT_S = 600.0
MAX_REPLIES = 20_000

Asked = asyncio.Future[Reply]


class Shared(Protocol):
    """What all gateways remember together (`tenants/quota/quota.py`)."""

    @property
    def is_within_reach(self) -> bool: ...
    def ride(self, *commands: bytes) -> None: ...
    def ask(self, command: bytes) -> Asked | None: ...


def body_hash(secret: bytes, header: bytes | None, raw: bytes) -> int:
    """By which a request is known again; 0 where its client says nothing about retries."""
    if header is None:
        return 0
    return int.from_bytes(hashlib.blake2b(raw, digest_size=8, key=secret[:64]).digest(), "big") or 1


def _everything(_call: Call) -> bool:
    return True


class UsefulReplies:
    """Of all gateways, lately. `may_share`: whether a call may be known to Redis."""

    def __init__(
        self, clock: Clock, shared: Shared | None = None, may_share: Callable[[Call], bool] = _everything
    ) -> None:
        self._shared = shared
        self._may_share = may_share
        self._given: BoundedCache[tuple[str, int], bool] = BoundedCache(
            MAX_REPLIES, ttl_s=KEPT_S, now_s=clock.monotonic_s
        )

    def add(self, call: Call) -> None:
        """It was given a reply that counts as useful."""
        if not call.body_hash:
            return
        if self._shared is not None and self._shared.is_within_reach and self._may_share(call):
            self._shared.ride(command("SET", _key(call), 1, "PX", round(KEPT_S * 1000)))
            return
        self._given.put((call.principal.api_token_id, call.body_hash), True)

    def ask(self, call: Call) -> Asked | None:
        """Begin to find out whether it shows an earlier reply to have been useless: for `num_retried`, at its end."""
        if not call.is_retry or self._shared is None or not self._may_share(call):
            return None
        return self._shared.ask(command("GETDEL", _key(call)))

    async def num_retried(self, call: Call, asked: Asked | None) -> int:
        """How many of them this call shows to have been useless: 0 or 1. Each is told once."""
        if not call.is_retry:
            return 0
        if asked is not None:
            with contextlib.suppress(StoreUnavailable):
                if isinstance(await asked, bytes):
                    return 1
        return int(self._given.pop((call.principal.api_token_id, call.body_hash)) is not None)


def _key(call: Call) -> str:
    return f"asked:{call.principal.api_token_id}:{call.body_hash:x}"
