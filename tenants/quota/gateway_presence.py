"""Presence of this gateway in Redis, and the number of running gateways: they share limits if Redis is unavailable."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from datetime import UTC, datetime

import msgspec
from msgspec import Struct

from storage.ephemeral import Ephemeral
from storage.errors import StoreUnavailable
from telemetry import metrics
from tenants.quota.local_quota import LocalQuota

_log = logging.getLogger(__name__)

PRESENCE_INTERVAL_S = 1.0
PRESENCE_TTL_S = 5.0
MAX_CLOCK_DIFFERENCE_S = 30.0
_KIND = "gateways"


class GatewayInfo(Struct, frozen=True):
    """A running gateway. Its id changes at every start."""

    gateway_id: str
    pop: str = ""
    version: str = ""
    started_at: datetime | None = None


async def read_gateways(ephemeral: Ephemeral) -> list[GatewayInfo]:
    """Return the running gateways, by PoP and start. Raises StoreUnavailable."""
    found = []
    for gateway_id, payload in (await ephemeral.present(_KIND)).items():
        try:
            found.append(msgspec.json.decode(payload, type=GatewayInfo))
        except msgspec.DecodeError:  # written by an older version
            found.append(GatewayInfo(gateway_id))
    return sorted(found, key=lambda each: (each.pop, str(each.started_at), each.gateway_id))


class GatewayPresence:
    """Sets `num_gateways` of `local` while `run` runs. `pop` and `version` are announced for display."""

    def __init__(self, ephemeral: Ephemeral, local: LocalQuota, *, pop: str = "", version: str = "") -> None:
        self._ephemeral = ephemeral
        self._local = local
        self._id = uuid.uuid4().hex
        self._payload = msgspec.json.encode(GatewayInfo(self._id, pop, version, datetime.now(UTC)))
        self._is_clock_off = False

    @property
    def gateway_id(self) -> str:
        return self._id

    async def run(self) -> None:
        """Announce this gateway and count the running gateways, forever."""
        while True:
            with contextlib.suppress(StoreUnavailable):
                self._compare_clocks(await self._ephemeral.announce(_KIND, self._id, self._payload, PRESENCE_TTL_S))
                self._local.num_gateways = max(1, len(await self._ephemeral.present(_KIND)))
                metrics.GATEWAYS.set(self._local.num_gateways)
            await asyncio.sleep(PRESENCE_INTERVAL_S)

    async def withdraw(self) -> None:
        """Remove the announcement. Does nothing if Redis is unavailable."""
        with contextlib.suppress(StoreUnavailable):
            await self._ephemeral.withdraw(_KIND, self._id)

    def _compare_clocks(self, redis_s: float) -> None:
        """Export the difference to the Redis clock, and log once if the clocks differ too much."""
        ahead_s = time.time() - redis_s
        metrics.CLOCK_AHEAD.set(round(ahead_s, 3))
        is_off = abs(ahead_s) > MAX_CLOCK_DIFFERENCE_S
        if is_off and not self._is_clock_off:
            _log.warning("this machine's clock differs from the Redis clock", extra={"ahead_s": round(ahead_s)})
        self._is_clock_off = is_off
