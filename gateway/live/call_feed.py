"""CallFeed: the finished calls of all gateways, for open event streams.

A gateway with an open stream announces in Redis which account it wants (or EVERY_ACCOUNT), and every gateway publishes
the finished calls of wanted accounts. Without a stream, a finished call costs one look-up in an empty set. The feed is
for display: calls are lost while Redis is unavailable and beyond MAX_CALLS_PER_TICK; the ledger has them all.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator

import msgspec

from storage.ephemeral import Ephemeral
from storage.errors import StoreUnavailable
from tenants.usage.usage_entries import UsageEntry

EVERY_ACCOUNT = "*"
TICK_S = 0.5
MAX_CALLS_PER_TICK = 50  # per account and gateway
_KIND = "call-feeds"
_TTL_S = 10.0  # longer than a gateway's pauses; for this long after the last stream closes, calls are still published
_RETRY_S = 1.0

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[UsageEntry]).decode


class CallFeed:
    """Publishes this gateway's finished calls, and yields those of all gateways."""

    def __init__(self, ephemeral: Ephemeral) -> None:
        self._ephemeral = ephemeral
        self._wanted: frozenset[str] = frozenset()  # models that any gateway wants
        self._wanted_here: Counter[str] = Counter()
        self._finished: dict[str, list[UsageEntry]] = {}

    def record(self, entry: UsageEntry) -> None:
        """Publish a finished call soon, if an open stream of any gateway shows its account."""
        if self._wanted:
            for key in (entry.account_id, EVERY_ACCOUNT):
                if key in self._wanted:
                    self._keep(key, entry)

    def _keep(self, key: str, entry: UsageEntry) -> None:
        kept = self._finished.setdefault(key, [])
        if len(kept) < MAX_CALLS_PER_TICK:
            kept.append(entry)

    async def run(self) -> None:
        """Publish until cancelled."""
        while True:
            await asyncio.sleep(TICK_S)
            with contextlib.suppress(StoreUnavailable):
                await self._tick()

    async def _tick(self) -> None:
        finished, self._finished = self._finished, {}
        for key, entries in finished.items():
            await self._ephemeral.publish(_channel(key), _encode(entries))
        for key in self._wanted_here:
            await self._ephemeral.announce(_KIND, key, b"1", _TTL_S)
        self._wanted = frozenset(await self._ephemeral.present(_KIND))

    async def calls(self, key: str) -> AsyncIterator[list[UsageEntry]]:
        """Yield finished calls of an account, or of EVERY_ACCOUNT, until closed. Waits while Redis is unavailable."""
        self._wanted_here[key] += 1
        try:
            while True:
                with contextlib.suppress(StoreUnavailable):
                    await self._ephemeral.announce(_KIND, key, b"1", _TTL_S)
                    async with contextlib.aclosing(self._ephemeral.subscribe(_channel(key))) as messages:
                        async for message in messages:
                            if message:
                                with contextlib.suppress(msgspec.DecodeError):
                                    yield _decode(message)
                await asyncio.sleep(_RETRY_S)
        finally:
            self._wanted_here[key] -= 1
            self._wanted_here += Counter()  # removes keys that no stream wants


def _channel(key: str) -> str:
    return f"call-feed:{key}"
