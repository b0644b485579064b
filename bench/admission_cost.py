"""Measure what authentication, quota and metering add to a call, each on its own.

    python -m bench.admission_cost [--calls 4000]

Runs the gateway's own components in one process, without HTTP and without a node: token verification from a header,
limits and a budget in one round trip to a real Redis on loopback, and an entry in a synced spool. Each component
alternates with an empty call at a concurrency of 32, whose cost is subtracted. CPU time is that of this process (all
threads) and, separately, of Redis. Latency covers all components together, at concurrency 1 and 32. Prints JSON.

Goals: 150 µs of CPU added per call, including the Redis round trip; P99 of 2 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import uvloop

from bench.gateway_cpu import cpu_seconds
from bench.platform_under_test import machine
from catalog.pricing import micro_neurons_for
from engine.protocol.events import Event, Finished, Started, Token, Usage
from engine.protocol.tasks.text_generation import TextGeneration
from gateway import authentication, quotas
from gateway.__main__ import settle_interpreter
from gateway.call import Call
from gateway.metering import MeteredEvents
from gateway.services import Services
from storage.database import Database, uuid7
from storage.embedded_redis import EmbeddedRedis
from storage.ephemeral import Ephemeral
from storage.migrate import migrate
from storage.spool import Spool
from telemetry.clock import SYSTEM_CLOCK
from tenants import accounts
from tenants.credentials import api_tokens
from tenants.credentials.principal import Principal
from tenants.credentials.token_verifier import TokenVerifier
from tenants.quota.allowance import Allowance
from tenants.quota.limits import Limits, parse_rules
from tenants.quota.quota import Quota
from tenants.usage.ledger import UsageLedger
from tests.gateway.process import PARROT, cards

PEPPER = b"a pepper for a benchmark, 32 byte"
AT_ONCE = 32
RULES = (
    "account=100000000/60, account.tokens=10000000000/60, token=100000000/300, text-generation=100000000/60, "
    "account.calls=100000"
)
PEER = ("127.0.0.1", 40000)
CARD = next(card for card in cards() if card.name == PARROT)
TASK = TextGeneration(prompt="Explain in two sentences why the sky is blue.")
EVENTS: list[Event] = [
    Started(20),
    Token("A short answer."),
    Finished("stop", Usage(prompt_tokens=20, completion_tokens=1)),
]


class Source:
    """An event source that has already finished."""

    node_id = "n1"

    def __init__(self) -> None:
        self.tried_node_ids = [self.node_id]

    async def take(self, not_before_s: float = 0.0) -> list[Event]:  # noqa: ARG002
        return EVENTS

    def cancel(self) -> None: ...

    def abandon(self) -> None: ...

    def stop(self) -> None: ...

    async def final_events(self, timeout_s: float) -> list[Event]:  # noqa: ARG002
        return []

    def close(self) -> None: ...


@dataclass
class PlatformAddress:
    """The components, and the state that a call brings with it."""

    services: Services
    ledger: UsageLedger
    headers: list[tuple[bytes, bytes]]
    principal: Principal
    redis_pid: int

    def make_call(self) -> Call:
        loop_s = asyncio.get_running_loop().time()
        return Call(
            request_id=uuid7(),
            principal=self.principal,
            card=CARD,
            requested_model=CARD.name,
            task=TASK,
            is_stream=False,
            namespace=bytes(32),
            tenant=1,
            affinity=b"",
            num_estimated_tokens=276,
            started_at=datetime.now(UTC),
            started_s=loop_s,
            deadline_s=loop_s + 60,
        )

    async def nothing(self) -> None:
        self.make_call()

    async def authenticate(self) -> None:
        self.make_call()
        principal = await authentication.authenticate(self.services, "POST", self.headers, PEER)
        authentication.authorize(principal, self.principal.account_id, authentication.RUN_MODELS_SCOPE)

    async def admit(self) -> None:
        async with quotas.QuotaReservation(self.services, [self.make_call()], []) as cost:
            cost.set_actual(21, 3)

    async def meter(self) -> None:
        events = MeteredEvents(self.make_call(), Source(), self.ledger, "local", SYSTEM_CLOCK)
        await events.take()
        await events.close()

    async def all(self) -> None:
        principal = await authentication.authenticate(self.services, "POST", self.headers, PEER)
        authentication.authorize(principal, self.principal.account_id, authentication.RUN_MODELS_SCOPE)
        call = self.make_call()
        headers: list[tuple[bytes, bytes]] = []
        async with quotas.QuotaReservation(self.services, [call], headers) as cost:
            events = MeteredEvents(call, Source(), self.ledger, "local", SYSTEM_CLOCK)
            await events.take()
            await events.close()
            cost.set_actual(events.num_tokens, events.micro_neurons)


@contextlib.asynccontextmanager
async def opened(folder: Path, redis: EmbeddedRedis) -> AsyncIterator[PlatformAddress]:
    """Start all components in an own folder."""
    url = f"sqlite://{folder / 'hearth.db'}"
    await migrate(url)
    database, ephemeral = Database.connect(url), Ephemeral.connect(redis.url)
    account_id = (await accounts.create(database, "bench", plan="free")).account_id
    made = await api_tokens.create(database, PEPPER, account_id, "bench", ["Workers AI Read"])
    verifier = TokenVerifier(database, PEPPER, SYSTEM_CLOCK, ephemeral)
    ledger = UsageLedger(Spool(folder / "spool", 1 << 30, keep_s=600.0), database)
    allowance = Allowance(
        database,
        SYSTEM_CLOCK,
        free_micro_neurons=10**15,
        micro_neurons_for=micro_neurons_for,
        flush=ledger.flush,
    )
    quota = Quota(redis.url, ephemeral, timeout_s=5.0, lease_s=60.0, budgets=allowance)
    await quota.open()
    parts = SimpleNamespace(
        verifier=verifier, trusted_proxies=None, quota=quota, limits=Limits(parse_rules(RULES)), allowance=allowance
    )
    jobs = [asyncio.create_task(job()) for job in (quota.run, ledger.run, verifier.watch)]
    headers = [(b"host", b"x"), (b"authorization", b"Bearer " + made.secret.encode())]
    principal = await authentication.authenticate(cast(Services, parts), "POST", headers, PEER)
    try:
        yield PlatformAddress(cast(Services, parts), ledger, headers, principal, redis.pid)
    finally:
        await ledger.close()
        await quota.close()
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
        await ephemeral.close()
        await database.close()


async def repeat(part: Callable[[], Awaitable[None]], num_calls: int, at_once: int) -> list[float]:
    """Return the seconds each call took."""
    took_s: list[float] = []

    async def run_sequentially(count: int) -> None:
        for _ in range(count):
            began_s = time.perf_counter()
            await part()
            took_s.append(time.perf_counter() - began_s)

    await asyncio.gather(*(run_sequentially(num_calls // at_once) for _ in range(at_once)))
    return took_s


async def cost_us(
    platform_address: PlatformAddress, part: Callable[[], Awaitable[None]], num_calls: int
) -> tuple[float, float]:
    """Return CPU microseconds per call of this process and of Redis, including deferred writes."""
    began_s, redis_s = time.process_time(), cpu_seconds(platform_address.redis_pid)
    took = await repeat(part, num_calls, AT_ONCE)
    await platform_address.ledger.flush()
    scale = 1e6 / len(took)
    return (time.process_time() - began_s) * scale, (cpu_seconds(platform_address.redis_pid) - redis_s) * scale


def percentiles(took_s: list[float]) -> dict[str, float]:
    ordered = sorted(took_s)
    return {
        "p50_ms": round(ordered[len(ordered) // 2] * 1e3, 3),
        "p99_ms": round(ordered[int(len(ordered) * 0.99)] * 1e3, 3),
    }


async def measure(folder: Path, redis: EmbeddedRedis, num_calls: int) -> dict[str, Any]:
    async with opened(folder, redis) as platform_address:
        settle_interpreter()
        parts = {
            "nothing": platform_address.nothing,
            "authentication": platform_address.authenticate,
            "admission": platform_address.admit,
            "metering": platform_address.meter,
            "all": platform_address.all,
        }
        for part in parts.values():  # one-time initialization
            await repeat(part, 2 * AT_ONCE, AT_ONCE)
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in parts}
        for _ in range(3):
            for name, part in parts.items():
                found[name].append(await cost_us(platform_address, part, num_calls))
        own = {name: statistics.median(own for own, _ in each) for name, each in found.items()}
        of_redis = {name: statistics.median(its for _, its in each) for name, each in found.items()}
        alone = await repeat(platform_address.all, num_calls // 4, 1)
        together = await repeat(platform_address.all, num_calls // 4, AT_ONCE)
    return {
        "added_cpu_us": {name: round(own[name] - own["nothing"], 1) for name in parts if name != "nothing"},
        "redis_cpu_us": round(of_redis["all"], 1),
        "latency_one": percentiles(alone),
        f"latency_{AT_ONCE}": percentiles(together),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=4000, help="of each part, three times")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="hearth-bench-"))
    redis = EmbeddedRedis(folder / "redis")
    try:
        redis.start()
        redis.wait_ready()
        found = uvloop.run(measure(folder, redis, options.calls))
    finally:
        redis.stop()
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps({"bench": "admission_cost", **vars(options), **found, **machine()}))


if __name__ == "__main__":
    main()
