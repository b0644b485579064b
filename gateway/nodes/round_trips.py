"""RoundTrips: measure the round trips from this gateway to all PoPs, and publish them.

The measurements come from the keepalive messages of the node connections. Gateways of the same PoP share their
measurements, so a gateway without a connection to a PoP need not estimate.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

import msgspec
from msgspec import Struct

from gateway.nodes.geography import Geography
from gateway.nodes.snapshot import Nodes
from storage.ephemeral import Ephemeral
from storage.errors import StoreUnavailable

log = logging.getLogger(__name__)

PRESENCE_KIND = "round-trips"
MEASURE_INTERVAL_S = 2.0
PUBLISH_INTERVAL_S = 6.0
PUBLISHED_TTL_S = 20.0
MAX_ROUND_TRIP_S = 10.0


class PublishedRoundTrips(Struct, frozen=True):
    """The round trips that one gateway has measured, in seconds by PoP. `pop` is the gateway's own."""

    pop: str
    round_trips_s: dict[str, float]


_decode = msgspec.json.Decoder(PublishedRoundTrips).decode


class RoundTrips:
    """Measures and publishes until `run` is cancelled. `gateway_id` is unique, and `pop` the gateway's own."""

    def __init__(self, ephemeral: Ephemeral, nodes: Nodes, geography: Geography, gateway_id: str, pop: str) -> None:
        self._ephemeral = ephemeral
        self._nodes = nodes
        self._geography = geography
        self._gateway_id = gateway_id
        self._pop = pop
        self._published: dict[str, dict[str, float]] = {}

    @property
    def published(self) -> Mapping[str, Mapping[str, float]]:
        """The round trips in seconds that gateways have measured and published: by their PoP, then by the other."""
        return self._published

    async def run(self) -> None:
        """Measure and publish until cancelled. An unavailable Redis only delays the publication."""
        loop = asyncio.get_running_loop()
        publish_s = loop.time()
        while True:
            self.measure()
            if loop.time() >= publish_s:
                publish_s = loop.time() + PUBLISH_INTERVAL_S
                try:
                    await self.publish()
                except StoreUnavailable:
                    log.debug("round trips were not published: Redis is unavailable")
            await asyncio.sleep(MEASURE_INTERVAL_S)

    def measure(self) -> None:
        """Take over the measurements of this gateway, and for other PoPs those of gateways in the same PoP."""
        self._geography.measure({**self._published.get(self._pop, {}), **self._nodes.round_trips_s()})

    async def publish(self) -> None:
        """Publish the measurements of this gateway, and read those of all gateways. Raises StoreUnavailable."""
        own = PublishedRoundTrips(self._pop, {pop: round(s, 6) for pop, s in self._nodes.round_trips_s().items()})
        await self._ephemeral.announce(PRESENCE_KIND, self._gateway_id, msgspec.json.encode(own), PUBLISHED_TTL_S)
        published: dict[str, dict[str, float]] = {}
        for gateway_id, payload in (await self._ephemeral.present(PRESENCE_KIND)).items():
            try:
                found = _decode(payload)
            except (msgspec.DecodeError, UnicodeDecodeError):
                log.warning("published round trips are unreadable", extra={"gateway": gateway_id})
                continue
            by_pop = published.setdefault(found.pop, {})
            for pop, seconds in found.round_trips_s.items():
                if 0 < seconds <= MAX_ROUND_TRIP_S:
                    by_pop[pop] = min(seconds, by_pop.get(pop, seconds))
        self._published = published
