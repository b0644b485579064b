"""tenants/quota/quota.py on a real Redis: exact limits across gateways, recovery, and shares while Redis is
unavailable.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from redis import Redis

from storage.embedded_redis import EmbeddedRedis
from storage.ephemeral import Ephemeral
from storage.errors import StoreUnavailable
from storage.redis_link import Reply, Sender
from tenants.quota import quota_script as script
from tenants.quota.gateway_presence import PRESENCE_INTERVAL_S
from tenants.quota.limits import Item, in_force, items_of, parse_rules
from tenants.quota.quota import Quota
from tenants.quota.quota_plan import Plan, QuotaExceeded, Reservation
from tenants.quota.unreported_calls import UnreportedCalls
from tests.waiting import wait_until

LEASE_S = 60.0


@pytest.fixture
def redis(own_redis_server: EmbeddedRedis) -> Iterator[Redis]:
    """Return a client of an empty Redis."""
    if not own_redis_server.is_running:
        own_redis_server.start()
        own_redis_server.wait_ready()
    with contextlib.closing(Redis.from_url(own_redis_server.url)) as client:
        client.flushall()
        yield client


MakeQuota = Callable[..., Quota]


@pytest.fixture
async def gateways(own_redis_server: EmbeddedRedis, redis: Redis) -> AsyncIterator[list[Quota]]:
    """Return the running quotas of two gateways."""
    ephemeral = Ephemeral.connect(own_redis_server.url, timeout_s=5)
    made = [Quota(own_redis_server.url, ephemeral, timeout_s=5, lease_s=LEASE_S) for _ in range(2)]
    jobs = []
    for quota in made:
        await quota.open()
        jobs.append(asyncio.create_task(quota.run()))
    yield made
    for quota in made:
        await quota.close()
    for job in jobs:
        job.cancel()
    await asyncio.gather(*jobs, return_exceptions=True)
    await ephemeral.close()


def items(text: str, account_id: str = "a", token: str = "t") -> tuple[Item, ...]:
    return items_of(in_force(parse_rules(text), "paid"), account_id, token, "chat", "@cf/x/y")


async def reserve(
    quota: Quota, plan: Plan, op: str, tokens: int = 0, micro_neurons: int = 0
) -> Reservation | QuotaExceeded:
    try:
        return await quota.reserve(plan, op, tokens=tokens, micro_neurons=micro_neurons)
    except QuotaExceeded as error:
        return error


async def both_are_counted(redis: Redis) -> None:
    """Wait until both gateways have announced themselves and counted each other."""
    await wait_until(lambda: redis.zcard("presence:gateways") == 2)
    await asyncio.sleep(PRESENCE_INTERVAL_S + 0.5)


async def disconnect(quota: Quota, redis: Redis) -> None:
    """Close all connections to Redis; they are reopened in the background."""
    redis.client_kill_filter(_type="normal", skipme=True)
    await wait_until(lambda: not quota.is_available, interval_s=0.001)


async def admitted(quotas: list[Quota], plan_of: Callable[[Quota], Plan], count: int, **cost: int) -> list[Reservation]:
    """Return the admitted ones of `count` concurrent calls, spread over the gateways."""
    jobs = (reserve(quotas[i % len(quotas)], plan_of(quotas[i % len(quotas)]), f"op{i}", **cost) for i in range(count))
    return [found for found in await asyncio.gather(*jobs) if isinstance(found, Reservation)]


async def test_limit_is_exact_across_gateways(gateways: list[Quota]):
    text = items("chat=50/3600")
    assert len(await admitted(gateways, lambda quota: quota.plan("a", text), 200)) == 50
    other = items("chat=50/3600", "b")
    assert len(await admitted(gateways, lambda quota: quota.plan("b", other), 60)) == 50


async def test_rejected_call_is_counted_nowhere_and_waits_for_the_slowest_window(gateways: list[Quota]):
    quota = gateways[0]
    plan = quota.plan("a", items("account=5/3600, token=2/60, chat=1/600"))
    first = await reserve(quota, plan, "1")
    assert isinstance(first, Reservation)
    assert [(s.item.name, s.remaining) for s in first.window_statuses] == [("account", 4), ("token", 1), ("chat", 0)]
    refused = await reserve(gateways[1], gateways[1].plan("a", plan.items), "2")
    assert isinstance(refused, QuotaExceeded)
    assert (refused.item.name, 590 < refused.retry_after_s <= 600) == ("chat", True)
    assert [(s.item.name, s.remaining) for s in refused.window_statuses] == [("account", 4), ("token", 1), ("chat", 0)]
    wider = gateways[1].plan("a", items("account=5/3600, token=2/60, chat=9/600"))
    second = await reserve(gateways[1], wider, "3")
    assert isinstance(second, Reservation)
    assert [s.remaining for s in second.window_statuses] == [3, 0, 7]


async def test_window_starts_with_its_first_call_and_ends_by_the_redis_clock(gateways: list[Quota], redis: Redis):
    quota = gateways[0]
    plan = quota.plan("a", items("chat=1/2"))
    assert isinstance(await reserve(quota, plan, "1"), Reservation)
    assert isinstance(await reserve(quota, plan, "2"), QuotaExceeded)
    (key,) = redis.keys("quota:r:*")  # type: ignore[misc]
    redis.hincrby(key, "b", -2000)  # moves the window's start back by two seconds
    other = gateways[1]
    assert isinstance(await reserve(other, other.plan("a", plan.items), "3"), Reservation)
    # A clock that was set back does not extend the window.
    redis.hincrby(key, "b", 3_600_000)
    refused = await reserve(other, other.plan("a", items("chat=1/2")), "4")
    assert isinstance(refused, QuotaExceeded)
    assert refused.retry_after_s <= 2


async def test_concurrent_calls_are_counted_until_settled_or_expired(gateways: list[Quota], redis: Redis):
    one, two = gateways
    text = items("account.calls=3, token.calls=2")
    reservations = [await reserve(one, one.plan("a", text), str(i)) for i in range(3)]
    assert [isinstance(found, Reservation) for found in reservations] == [True, True, False]
    assert isinstance(reservations[2], QuotaExceeded)
    assert (reservations[2].item.name, reservations[2].retry_after_s) == ("token.calls", 1)
    assert isinstance(reservations[0], Reservation)
    one.settle(reservations[0])
    one.settle(reservations[0])  # has no effect the second time
    await wait_until(lambda: redis.zcard("quota:open:a") == 1)
    assert isinstance(await reserve(two, two.plan("a", text), "4"), Reservation)
    redis.zadd("quota:c:token:t", {"1": 1, "4": 1})  # leases of dead gateways
    assert isinstance(await reserve(two, two.plan("a", text), "5"), Reservation)


async def test_sequential_calls_are_not_rejected_because_of_each_other(gateways: list[Quota]):
    quota = gateways[0]
    plan = quota.plan("a", items("account.calls=2"))
    other = await quota.reserve(plan, "beside")
    for number in range(5):
        reservation = await quota.reserve(plan, f"op{number}")
        assert isinstance(await reserve(quota, plan, f"more{number}"), QuotaExceeded)
        quota.settle(reservation)
    quota.settle(other)


async def test_estimated_tokens_are_corrected_when_the_call_is_settled(gateways: list[Quota], redis: Redis):
    quota = gateways[0]
    plan = quota.plan("a", items("account.tokens=100/3600"))
    first = await reserve(quota, plan, "1", tokens=80)
    assert isinstance(first, Reservation)
    assert isinstance(await reserve(quota, plan, "2", tokens=30), QuotaExceeded)
    quota.settle(first, tokens=20)
    await wait_until(lambda: redis.hget("quota:t:account:a", "n") == b"20")
    big = await reserve(quota, plan, "3", tokens=5000)
    assert isinstance(big, QuotaExceeded)
    second = await reserve(quota, plan, "4", tokens=80)
    assert isinstance(second, Reservation)
    quota.settle(second, tokens=130)
    await wait_until(lambda: redis.hget("quota:t:account:a", "n") == b"150")


async def test_repeated_script_counts_once(gateways: list[Quota], redis: Redis):
    text = items("chat=5/3600, account.tokens=100/3600, account.calls=9")
    found = [await reserve(quota, quota.plan("a", text), "same", tokens=10) for quota in gateways]
    assert all(isinstance(reservation, Reservation) for reservation in found)
    assert redis.hget("quota:r:chat:a", "n") == b"1"
    for quota, reservation in zip(gateways, found, strict=True):
        assert isinstance(reservation, Reservation)
        quota.settle(reservation, tokens=30)
        quota._flush()
        await reserve(quota, quota.plan("b", items("chat=5/3600", "b")), "behind it on the same connection")
    assert redis.hget("quota:t:account:a", "n") == b"30"
    assert (redis.zcard("quota:open:a"), redis.zcard("quota:c:account:a")) == (0, 0)


@dataclass(frozen=True)
class Purse:
    key: str
    limit: int
    ttl_s: float = 3600
    name: str = "allowance"
    requires_redis: bool = True


class Ledger:
    def __init__(self) -> None:
        self.sums: dict[str, int] = {}
        self.num_asked = 0

    async def used(self, budget: Purse) -> int:
        self.num_asked += 1
        await asyncio.sleep(0)
        return self.sums.get(budget.key, 0)


@pytest.fixture
async def spender(own_redis_server: EmbeddedRedis, redis: Redis) -> AsyncIterator[tuple[Quota, Ledger]]:
    ephemeral, ledger = Ephemeral.connect(own_redis_server.url, timeout_s=5), Ledger()
    quota = Quota(own_redis_server.url, ephemeral, timeout_s=5, lease_s=LEASE_S, budgets=ledger)
    await quota.open()
    yield quota, ledger
    await quota.close()
    await ephemeral.close()
    await asyncio.sleep(0)  # lets the transport close


async def test_budget_is_seeded_from_the_ledger_then_reserved_and_settled(spender: tuple[Quota, Ledger], redis: Redis):
    quota, ledger = spender
    ledger.sums["day"] = 40
    plan = quota.plan("a", (), (Purse("day", 100),))
    found = await admitted([quota], lambda _: plan, 10, micro_neurons=20)
    assert (len(found), ledger.num_asked) == (3, 1)
    assert redis.hgetall("day") == {b"u": b"40", b"r": b"60"}
    quota.settle(found[0], micro_neurons=5)
    quota.settle(found[1], micro_neurons=50)
    await wait_until(lambda: redis.hgetall("day") == {b"u": b"95", b"r": b"20"})
    await quota.raise_used("day", 97)
    await quota.raise_used("day", 3)
    await quota.raise_used("unknown", 3)
    assert (redis.hget("day", "u"), redis.exists("unknown")) == (b"97", 0)


async def test_expired_lease_of_a_dead_gateway_releases_its_reservation(spender: tuple[Quota, Ledger], redis: Redis):
    quota, _ = spender
    plan = quota.plan("a", (), (Purse("day", 100), Purse("month", 1000)))
    assert isinstance(await reserve(quota, plan, "dead", micro_neurons=90), Reservation)
    assert isinstance(await reserve(quota, plan, "2", micro_neurons=50), QuotaExceeded)
    redis.zadd("quota:open:a", {"dead": 1})
    assert isinstance(await reserve(quota, plan, "3", micro_neurons=50), Reservation)
    assert [redis.hget(key, "r") for key in ("day", "month")] == [b"50", b"50"]


async def test_windows_and_calls_are_restored_after_redis_is_flushed(gateways: list[Quota], redis: Redis):
    one, two = gateways
    text = items("chat=10/3600, account.calls=4")
    reservations = [await reserve(one, one.plan("a", text), str(i)) for i in range(4)]
    assert isinstance(reservations[0], Reservation)
    one.settle(reservations[0])
    await wait_until(lambda: redis.zcard("quota:open:a") == 3)
    redis.flushall()
    redis.script_flush()
    assert isinstance(await reserve(one, one.plan("a", text), "4"), Reservation)
    assert redis.hget("quota:r:chat:a", "n") == b"5"
    assert redis.zcard("quota:c:account:a") == 4
    refused = await reserve(two, two.plan("a", text), "5")
    assert isinstance(refused, QuotaExceeded)
    assert refused.item.name == "account.calls"


async def test_each_gateway_enforces_its_share_of_the_rest_while_redis_is_unavailable(
    gateways: list[Quota], redis: Redis, own_redis_server: EmbeddedRedis
):
    one, two = gateways
    await both_are_counted(redis)
    text, plain = items("chat=50/3600"), items("chat=8/3600", "b")
    before = [await reserve(quota, quota.plan("a", text), f"{i}{id(quota)}") for i in range(5) for quota in gateways]
    assert all(isinstance(found, Reservation) for found in before)
    own_redis_server.stop()
    seen = await admitted(gateways, lambda quota: quota.plan("a", text), 200)
    assert 38 <= len(seen) <= 41  # 40 calls remain; one gateway may know one call less
    unseen = await admitted(gateways, lambda quota: quota.plan("b", plain), 30)
    assert len(unseen) == 8
    for reservation in seen[:7]:
        one.settle(reservation)  # has no effect for reservations of the other gateway
        two.settle(reservation)
    own_redis_server.start()
    own_redis_server.wait_ready()
    await wait_until(lambda: all(quota.is_available for quota in gateways))
    # The gateways restore the windows they knew, the calls admitted meanwhile and the running calls. The first gateway
    # to recover may know one call less.
    assert 9 + len(seen) <= int(redis.hget("quota:r:chat:a", "n") or 0) <= 10 + len(seen)
    assert int(redis.hget("quota:r:chat:b", "n") or 0) == 8
    assert isinstance(await reserve(two, two.plan("b", plain), "late"), QuotaExceeded)


async def test_gateway_enforces_its_share_until_the_other_gateway_has_reported(
    gateways: list[Quota], redis: Redis, own_redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
):
    first, last = gateways
    await both_are_counted(redis)
    may_connect, connect = asyncio.Event(), last._link._connect

    async def connect_late() -> Any:
        await may_connect.wait()
        return await connect()

    monkeypatch.setattr(last._link, "_connect", connect_late)
    text = items("chat=20/3600")
    own_redis_server.stop()
    assert len(await admitted(gateways, lambda quota: quota.plan("a", text), 60)) == 20
    await asyncio.sleep(1.5)  # the shares then stay in force for 3 s, the maximum
    own_redis_server.start()
    own_redis_server.wait_ready()
    await wait_until(lambda: first.is_available)
    rejected = await reserve(first, first.plan("a", text), "early")
    assert isinstance(rejected, QuotaExceeded), "the other gateway's calls are not in Redis yet"
    assert 1 <= rejected.retry_after_s <= 3
    may_connect.set()
    await wait_until(lambda: redis.hget("quota:r:chat:a", "n") == b"20")
    await asyncio.sleep(rejected.retry_after_s)
    assert isinstance(await reserve(first, first.plan("b", items("chat=20/3600", "b")), "later"), Reservation)
    assert first._local.shares_left_s(asyncio.get_running_loop().time()) == 0


async def test_calls_with_a_budget_are_rejected_while_redis_is_unavailable(
    spender: tuple[Quota, Ledger], own_redis_server: EmbeddedRedis
):
    quota, _ = spender
    own_redis_server.stop()
    with pytest.raises(StoreUnavailable):
        await quota.reserve(quota.plan("a", (), (Purse("day", 100),)), "1", micro_neurons=1)
    open_one = quota.plan("a", (), (Purse("day", 100, requires_redis=False),))
    assert isinstance(await quota.reserve(open_one, "2", micro_neurons=1), Reservation)


async def test_redis_that_rejects_writes_counts_as_unavailable(gateways: list[Quota], redis: Redis):
    quota = gateways[0]
    plan = quota.plan("a", items("chat=4/3600"))
    redis.config_set("maxmemory", 1)
    try:
        found = await reserve(quota, plan, "1")
        assert isinstance(found, Reservation)
        assert not found.is_counted
    finally:
        redis.config_set("maxmemory", 0)
    await wait_until(lambda: redis.hget("quota:r:chat:a", "n") == b"1")


async def test_waiting_slot_is_held_until_output_and_call_slot_until_the_end(gateways: list[Quota], redis: Redis):
    one, two = gateways
    text = items("account.calls=4, account.waiting=2")
    first, second, third = [await reserve(one, one.plan("a", text), str(i)) for i in range(3)]
    assert isinstance(first, Reservation)
    assert isinstance(second, Reservation)
    assert isinstance(third, QuotaExceeded)
    assert third.item.name == "account.waiting"
    one.release_waiting(first)
    one.release_waiting(first)
    await wait_until(lambda: redis.zrange("quota:w:account:a", 0, -1) == [b"1"])
    assert isinstance(await reserve(two, two.plan("a", text), "3"), Reservation)
    assert redis.zcard("quota:c:account:a") == 3
    redis.flushall()
    assert isinstance(await reserve(one, one.plan("a", text), "4"), Reservation), (
        "a call with output does not wait after a flush"
    )
    assert redis.zrange("quota:w:account:a", 0, -1) == [b"1", b"4"]
    one.settle(first)
    one.settle(second)
    await wait_until(lambda: redis.zrange("quota:w:account:a", 0, -1) == [b"4"])


async def test_first_output_releases_a_waiting_slot_while_redis_is_unavailable(
    gateways: list[Quota], redis: Redis, own_redis_server: EmbeddedRedis
):
    one = gateways[0]
    await both_are_counted(redis)
    plan = one.plan("a", items("account.waiting=2"))
    before = await reserve(one, plan, "before")
    assert isinstance(before, Reservation)
    own_redis_server.stop()
    assert isinstance(await reserve(one, plan, "1"), QuotaExceeded), "its share is one"
    one.release_waiting(before)
    found = await reserve(one, plan, "2")
    assert isinstance(found, Reservation)
    one.release_waiting(found)
    own_redis_server.start()
    own_redis_server.wait_ready()
    await wait_until(lambda: one.is_available)
    await wait_until(lambda: redis.zcard("quota:open:a") == 2)
    assert redis.zcard("quota:w:account:a") == 0


async def test_retry_after_is_estimated_from_how_long_slots_are_held(
    gateways: list[Quota], monkeypatch: pytest.MonkeyPatch
):
    quota, now_s = gateways[0], 1000.0
    monkeypatch.setattr(quota, "_loop", Clockwork(lambda: now_s))
    plan = quota.plan("a", items("account.calls=2"))
    for number in range(30):
        reservation = await reserve(quota, plan, str(number))
        assert isinstance(reservation, Reservation)
        now_s += 20.0
        quota.settle(reservation)
        quota._flush()
    assert [isinstance(await reserve(quota, plan, op), Reservation) for op in ("x", "y")] == [True, True]
    refused = await reserve(quota, plan, "z")
    assert isinstance(refused, QuotaExceeded)
    assert refused.retry_after_s == 10


@dataclass(frozen=True)
class Clockwork:
    """An event loop whose clock is advanced by hand and that calls nothing later."""

    time: Callable[[], float]

    def call_later(self, *_: object) -> None: ...


async def test_new_connection_is_used_only_after_its_preparation(
    gateways: list[Quota], redis: Redis, monkeypatch: pytest.MonkeyPatch
):
    """A call during recovery could find one script loaded and the next one missing."""
    quota = gateways[0]
    plan = quota.plan("a", items("chat=9/3600"))
    assert isinstance(await reserve(quota, plan, "1"), Reservation)
    may_go_on, load = asyncio.Event(), quota._load_scripts

    async def slowly(link: object) -> None:
        await may_go_on.wait()
        await load(link)

    monkeypatch.setattr(quota, "_load_scripts", slowly)
    redis.flushall()
    redis.script_flush()
    await disconnect(quota, redis)
    found = await reserve(quota, plan, "2")
    assert isinstance(found, Reservation)
    assert not found.is_counted
    may_go_on.set()
    await wait_until(lambda: redis.hget("quota:r:chat:a", "n") == b"2")


async def test_calls_admitted_during_recovery_are_reported_too(
    gateways: list[Quota], redis: Redis, monkeypatch: pytest.MonkeyPatch
):
    quota, send = gateways[0], UnreportedCalls.send
    plan = quota.plan("a", items("chat=9/3600"))
    meanwhile: list[asyncio.Task[Reservation | QuotaExceeded]] = []

    def send_slowly(self: UnreportedCalls, link: Sender, **fields: Any) -> asyncio.Future[list[Reply]]:
        replies = send(self, link, **fields)
        if fields["running"] and not meanwhile:
            meanwhile.append(asyncio.create_task(reserve(quota, plan, "2")))
        return replies

    monkeypatch.setattr(UnreportedCalls, "send", send_slowly)
    await disconnect(quota, redis)
    alone = await reserve(quota, plan, "1")
    assert isinstance(alone, Reservation)
    await wait_until(lambda: quota.is_available)
    assert isinstance(await meanwhile[0], Reservation)
    assert isinstance(await reserve(quota, plan, "3"), Reservation)
    assert redis.hget("quota:r:chat:a", "n") == b"3"


async def test_unreported_calls_are_kept_if_they_do_not_arrive():
    class Broken:
        def send(self, _data: bytes, _num_replies: int = 1) -> asyncio.Future[Reply]:
            reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
            reply.set_exception(StoreUnavailable("by the test"))
            return reply

        def drop(self, reason: str) -> None: ...

    unreported = UnreportedCalls()
    unreported.add_reservation(Reservation(Plan("a", items("chat=9/3600")), "1", 0, 0), 0.0)
    with pytest.raises(StoreUnavailable):
        await unreported.send(Broken(), epoch="e", lease_ms=1000, running={}, now_s=1.0)
    await wait_until(lambda: bool(unreported))  # set by a callback that runs after the exception is raised


async def test_scripts_are_loaded_again_when_redis_loses_some(gateways: list[Quota], redis: Redis):
    quota = gateways[0]
    plan = quota.plan("a", items("chat=9/3600"))
    assert isinstance(await reserve(quota, plan, "1"), Reservation)
    redis.flushall()
    redis.script_flush()
    redis.script_load(script.SCRIPTS["reserve"])  # the first of the scripts of a call; the others are not loaded
    found = await reserve(quota, plan, "2")
    assert isinstance(found, Reservation)
    assert found.is_counted
    assert redis.hget("quota:r:chat:a", "n") == b"2"
