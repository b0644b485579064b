"""Client retries mark the earlier response as not useful, whichever gateway sent it, without delaying calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import msgspec
import pytest

from engine.protocol.tasks.text_generation import TextGeneration
from gateway.call import Call
from gateway.retry_tracker import RetryTracker, body_hash
from storage.embedded_redis import EmbeddedRedis
from storage.ephemeral import Ephemeral
from telemetry.clock import SYSTEM_CLOCK
from tenants.credentials.principal import Principal
from tenants.quota.quota import FLUSH_S, Quota
from tests.gateway.process import PARROT, cards

SECRET = b"secret of the tests" * 2
CARD = next(card for card in cards() if card.name == PARROT)


def call(raw: bytes = b"body", header: bytes | None = b"0", token: str = "t") -> Call:
    now = datetime.now(UTC)
    return Call(
        request_id="r", principal=Principal("a", token, frozenset({"ai:run"})), card=CARD, requested_model=PARROT,
        task=TextGeneration(prompt="x"), is_stream=False, namespace=bytes(32), tenant=1, affinity=b"",
        num_estimated_tokens=1, started_at=now, started_s=0.0, deadline_s=60.0,
        body_hash=body_hash(SECRET, header, raw), is_retry=header not in (None, b"0"),
    )  # fmt: skip


@pytest.fixture
async def quotas(redis_url: str, redis_server: EmbeddedRedis) -> AsyncIterator[list[Quota]]:
    """Yield the quotas of two gateways that share one Redis."""
    ephemeral = Ephemeral.connect(redis_url, timeout_s=5)
    made = [Quota(redis_url, ephemeral, timeout_s=5, lease_s=60) for _ in range(2)]
    for quota in made:
        await quota.open()
    yield made
    for quota in made:
        await quota.close()
    await ephemeral.close()
    await asyncio.sleep(0)  # lets the transports close


async def retried(replies: RetryTracker, again: Call) -> int:
    return await replies.num_retried(again, replies.look_up(again))


async def test_another_gateway_reports_a_retry_once(quotas: list[Quota]):
    one, two = (RetryTracker(SYSTEM_CLOCK, quota) for quota in quotas)
    one.add(call())
    await asyncio.sleep(2 * FLUSH_S)
    assert await retried(one, call(b"other", b"1")) == 0
    assert await retried(two, call(header=b"1", token="u")) == 0
    assert await retried(two, call()) == 0, "it is no retry"
    assert await retried(two, call(header=b"1")) == 1
    assert [await retried(each, call(header=b"2")) for each in (one, two)] == [0, 0]


async def test_zero_retention_calls_are_remembered_by_one_gateway_only(
    quotas: list[Quota], redis_server: EmbeddedRedis
):
    one, two = (RetryTracker(SYSTEM_CLOCK, quota, lambda _: False) for quota in quotas)
    one.add(call())
    await asyncio.sleep(2 * FLUSH_S)
    assert await retried(two, call(header=b"1")) == 0
    assert await retried(one, call(header=b"1")) == 1


async def test_retries_are_remembered_per_gateway_while_redis_is_unavailable(quotas: list[Quota]):
    for quota in quotas:
        quota._link.drop("by the test")
    one, two = (RetryTracker(SYSTEM_CLOCK, quota) for quota in quotas)
    one.add(call())
    assert (await retried(two, call(header=b"1")), await retried(one, call(header=b"1"))) == (0, 1)


def test_requests_without_retry_header_are_not_hashed():
    assert body_hash(SECRET, None, b"x") == 0
    assert body_hash(SECRET, b"0", b"x") == body_hash(SECRET, b"3", b"x") != body_hash(SECRET, b"0", b"y")
    assert body_hash(SECRET, b"0", b"x") != body_hash(b"another secret", b"0", b"x")
    assert msgspec.structs.asdict(call(header=None))["body_hash"] == 0
