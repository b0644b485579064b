"""Demand: calls and tokens per second of each model at this gateway, published in Redis for the control loop.

Rates are moving averages over about a minute. Counting a call costs two dictionary updates. While Redis is unavailable
nothing is published, and the demand of this gateway expires.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math

import msgspec
from msgspec import Struct

from gateway.scaling.inputs import Demand
from storage.ephemeral import Ephemeral
from storage.errors import StoreUnavailable
from telemetry.clock import Clock
from tenants.usage.usage_entries import UsageEntry

log = logging.getLogger(__name__)

KIND = "demand"
PERIOD_S = 2.0
TTL_S = 15.0
AVERAGE_S = 60.0  # time constant of the moving average
MAX_MODELS = 1000  # models remembered per gateway; the least recently called are forgotten
FORGET_S = 7200.0  # after the last call


class ModelRate(Struct, frozen=True, array_like=True, gc=False):
    """One model's demand, as published."""

    model: str
    tokens_per_s: float
    idle_s: float


class Published(Struct, frozen=True, gc=False):
    """The demand of one gateway."""

    pop: str
    rates: list[ModelRate]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Published).decode


class _Rate:
    __slots__ = ("called_s", "new_tokens", "tokens_per_s")

    def __init__(self) -> None:
        self.called_s = 0.0
        self.new_tokens = 0
        self.tokens_per_s = 0.0


class DemandMeter:
    """Counts this gateway's calls and reads the demand of all gateways. `name` must be unique among the gateways."""

    def __init__(self, ephemeral: Ephemeral, name: str, pop: str, clock: Clock) -> None:
        self._ephemeral = ephemeral
        self._name = name
        self._pop = pop
        self._clock = clock
        self._rates: dict[str, _Rate] = {}
        self._updated_s = clock.monotonic_s()

    def begin(self, model: str) -> None:
        """Count the beginning of a call."""
        rate = self._rates.get(model)
        if rate is None:
            rate = self._rates[model] = _Rate()
        rate.called_s = self._clock.monotonic_s()

    def record(self, entry: UsageEntry) -> None:
        """Count the tokens of a finished call."""
        rate = self._rates.get(entry.model)
        if rate is not None:
            rate.new_tokens += entry.prompt_tokens - entry.cached_tokens + entry.completion_tokens

    def update(self) -> list[ModelRate]:
        """Update the averages and return the rates of the models that were called lately."""
        now_s = self._clock.monotonic_s()
        elapsed_s = now_s - self._updated_s
        self._updated_s = now_s
        fading = math.exp(-elapsed_s / AVERAGE_S)
        for rate in self._rates.values():
            newest = rate.new_tokens / elapsed_s if elapsed_s > 0 else 0.0
            rate.tokens_per_s = rate.tokens_per_s * fading + newest * (1 - fading)
            rate.new_tokens = 0
        recent = sorted(self._rates.items(), key=lambda each: -each[1].called_s)[:MAX_MODELS]
        self._rates = {model: rate for model, rate in recent if now_s - rate.called_s < FORGET_S}
        return [
            ModelRate(model, round(rate.tokens_per_s, 3), round(now_s - rate.called_s, 1))
            for model, rate in self._rates.items()
        ]

    async def run(self) -> None:
        """Publish until cancelled."""
        while True:
            await asyncio.sleep(PERIOD_S)
            published = Published(self._pop, self.update())
            with contextlib.suppress(StoreUnavailable):
                await self._ephemeral.announce(KIND, self._name, _encode(published), TTL_S)

    async def read_all(self) -> list[Demand]:
        """Return the demand of all gateways, by model and PoP. Raises StoreUnavailable."""
        tokens_per_s: dict[tuple[str, str], float] = {}
        idle_s: dict[tuple[str, str], float] = {}
        for name, payload in (await self._ephemeral.present(KIND)).items():
            try:
                published = _decode(payload)
            except msgspec.DecodeError:
                log.warning("published demand is unreadable", extra={"gateway": name})
                continue
            for rate in published.rates:
                key = rate.model, published.pop
                tokens_per_s[key] = tokens_per_s.get(key, 0.0) + max(0.0, rate.tokens_per_s)
                idle_s[key] = min(idle_s.get(key, math.inf), max(0.0, rate.idle_s))
        return [Demand(model, pop, rate, idle_s[model, pop]) for (model, pop), rate in tokens_per_s.items()]
