"""Client retry detection: a response that the client requests again within ten minutes counts as not useful, whatever
its status was.

Official clients send a header with the number of the retry; the body of a retry equals that of the first request byte
for byte, and is recognized by a keyed hash. Redis remembers useful responses for all gateways; the commands are
pipelined with others, and no call waits for them. While Redis is unavailable, and for accounts whose data must not be
stored there, each gateway remembers its own responses.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Callable

from gateway.call import Call
from storage.errors import StoreUnavailable
from storage.redis_link import Reply, command
from telemetry.bounded_cache import BoundedCache
from telemetry.clock import Clock
from tenants.quota.quota import Quota

RETRY_HEADER = b"x-stainless-retry-count"
REMEMBERED_S = 600.0
MAX_REMEMBERED = 20_000

Lookup = asyncio.Future[Reply]


def body_hash(secret: bytes, header: bytes | None, raw: bytes) -> int:
    """Return the hash by which a retry is recognized; 0 if the client sends no retry header."""
    if header is None:
        return 0
    return int.from_bytes(hashlib.blake2b(raw, digest_size=8, key=secret[:64]).digest(), "big") or 1


def _always(_call: Call) -> bool:
    return True


class RetryTracker:
    """Remembers recent useful responses, for all gateways if `quota`, whose connection to Redis is shared, is given.
    `may_share` returns True if a call may be remembered in Redis."""

    def __init__(self, clock: Clock, quota: Quota | None = None, may_share: Callable[[Call], bool] = _always) -> None:
        self._quota = quota
        self._may_share = may_share
        self._useful: BoundedCache[tuple[str, int], bool] = BoundedCache(
            MAX_REMEMBERED, ttl_s=REMEMBERED_S, now_s=clock.monotonic_s
        )

    def add(self, call: Call) -> None:
        """Remember that the response to a call counts as useful."""
        if not call.body_hash:
            return
        if self._quota is not None and self._quota.is_available and self._may_share(call):
            self._quota.pipeline(command("SET", _key(call), 1, "PX", round(REMEMBERED_S * 1000)))
            return
        self._useful.put((call.principal.api_token_id, call.body_hash), True)

    def look_up(self, call: Call) -> Lookup | None:
        """Start to look up whether a call retries a remembered one; pass the result to `num_retried` at its end."""
        if not call.is_retry or self._quota is None or not self._may_share(call):
            return None
        return self._quota.send(command("GETDEL", _key(call)))

    async def num_retried(self, call: Call, lookup: Lookup | None) -> int:
        """Return 1 if this call retries a remembered one, else 0. Each is reported once."""
        if not call.is_retry:
            return 0
        if lookup is not None:
            with contextlib.suppress(StoreUnavailable):
                if isinstance(await lookup, bytes):
                    return 1
        return int(self._useful.pop((call.principal.api_token_id, call.body_hash)) is not None)


def _key(call: Call) -> str:
    return f"retry:{call.principal.api_token_id}:{call.body_hash:x}"
