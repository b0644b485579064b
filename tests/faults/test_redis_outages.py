"""Redis faults: flush, restart without data, partition, delay, full memory, lost replies. Calls continue, and no
counter restarts.

A real gateway and a real Redis with the fault proxy between them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from redis import Redis

from bench import figures
from storage.database import Database
from tenants import accounts
from tenants.credentials import api_tokens
from tests.faults.conftest import errors_in, socket_of
from tests.faults.proxy import FaultProxy
from tests.gateway.inference.test_text_generation import events_of, script
from tests.gateway.process import PARROT, PEPPER
from tests.gateway.site import READ, Running, Site
from tests.waiting import wait_for_a_day_that_lasts, wait_until_blocking

pytestmark = pytest.mark.full

LIMIT = 40
QUOTA_TIMEOUT_S = 0.25
READ_ID, EVERYWHERE = "a92d2450e05d4e7bb7d0a64968f83d11", "com.cloudflare.api.account.*"
WINDOW = "quota:r:text-generation:{account}"


@dataclass
class RedisBehindProxy:
    """A gateway whose Redis is behind a proxy, and the account whose calls are counted."""

    running: Running
    proxy: FaultProxy
    client: httpx.Client
    redis: Redis
    account_id: str = ""
    secret: str = ""

    async def reset(self, plan: str = "paid") -> None:
        """Remove all faults and create a new account, whose quotas are unused."""
        self.proxy.heal()
        database = Database.connect(self.running.site.database_url)
        try:
            self.account_id = (await accounts.create(database, "own", plan=plan)).account_id
            self.secret = (await api_tokens.create(database, PEPPER, self.account_id, "own", [READ])).secret
        finally:
            await database.close()

    def ask(self, body: dict[str, object] | None = None) -> httpx.Response:
        url = f"{self.running.gateway.base_url}/accounts/{self.account_id}/ai/run/{PARROT}"
        return self.client.post(url, json=body or {"prompt": "x"}, headers={"Authorization": f"Bearer {self.secret}"})

    def num_counted(self) -> int:
        """Return the number of requests in the window, as stored in Redis."""
        return int(self.redis.hget(WINDOW.format(account=self.account_id), "n") or 0)  # type: ignore[arg-type]

    @property
    def num_locally_admitted(self) -> float:
        return self.running.gateway.metric("hearth_local_quota_calls_total")


@pytest.fixture(scope="module")
def shared_proxied(new_site: Callable[..., Site]) -> Iterator[RedisBehindProxy]:
    site = new_site()
    site.add_node("n1")
    with FaultProxy(socket_of(site.redis)) as proxy, contextlib.closing(Redis.from_url(site.redis.url)) as redis:
        gateway = site.gateway(
            REDIS_URL=f"redis://127.0.0.1:{proxy.port}",
            HEARTH_RATE_LIMITS=f"text-generation={LIMIT}/86400",
            HEARTH_QUOTA_TIMEOUT_S=str(QUOTA_TIMEOUT_S),
            HEARTH_FREE_NEURONS_PER_DAY="1",
        )
        with httpx.Client(timeout=60) as client:
            yield RedisBehindProxy(Running(site, gateway.start()), proxy, client, redis)
        assert errors_in(gateway) == ""
        assert gateway.stop() == 0


@pytest.fixture
def proxied(shared_proxied: RedisBehindProxy) -> RedisBehindProxy:
    asyncio.run(shared_proxied.reset())
    wait_until_blocking(lambda: is_counted_in_redis(shared_proxied), interval_s=0.1)
    asyncio.run(shared_proxied.reset())
    return shared_proxied


def is_counted_in_redis(proxied: RedisBehindProxy) -> bool:
    """Return True if calls are counted in Redis, and not by the gateway alone."""
    before = proxied.num_locally_admitted
    proxied.ask()
    return proxied.num_locally_admitted == before


def test_flush_restarts_no_quota_window(proxied: RedisBehindProxy):
    assert [proxied.ask().status_code for _ in range(30)] == [200] * 30
    proxied.redis.flushall()
    proxied.redis.script_flush()
    statuses = [proxied.ask().status_code for _ in range(20)]
    assert (statuses.count(200), statuses.count(429)) == (10, 10), statuses
    # A gateway that loaded its scripts late counted locally until then and reports this with a later call.
    later: list[int] = []
    wait_until_blocking(
        lambda: later.append(proxied.ask().status_code) or proxied.num_counted() == LIMIT, interval_s=0.1
    )
    assert set(later) == {429}


def test_flush_refunds_no_budget(proxied: RedisBehindProxy):
    wait_for_a_day_that_lasts(60)
    asyncio.run(proxied.reset("free"))
    # costs 0.6 of the day's one neuron
    large_body: dict[str, object] = {"prompt": script(tokens=["x"] * 600), "max_tokens": 600}
    response = proxied.ask(large_body)
    assert response.status_code == 200
    spent = proxied.running.site.usage_row(response.headers["cf-ai-req-id"])["micro_neurons"]
    for _ in range(2):
        proxied.redis.flushall()
        refused = proxied.ask(large_body)
        assert (refused.status_code, refused.json()["errors"][0]["code"]) == (429, 3036)
        [key] = proxied.redis.keys(f"neurons:day:{proxied.account_id}:*")  # type: ignore[misc]
        assert int(proxied.redis.hget(key, "u") or 0) == spent > 500_000, "Redis does not have the amount of the ledger"  # type: ignore[arg-type]


def test_restart_without_data_restarts_no_quota_window(proxied: RedisBehindProxy):
    site = proxied.running.site
    assert [proxied.ask().status_code for _ in range(25)] == [200] * 25
    site.redis.stop()
    proxied.proxy.reset()
    during = [proxied.ask().status_code for _ in range(5)]
    site.redis.start()
    site.redis.wait_ready()
    statuses: list[int] = []
    wait_until_blocking(lambda: statuses.append(proxied.ask().status_code) or proxied.num_counted() > 0, interval_s=0.1)
    while len(statuses) < 30:
        statuses.append(proxied.ask().status_code)
    assert set(during) == {200}
    assert set(statuses) == {200, 429}
    assert during.count(200) + statuses.count(200) == LIMIT - 25
    assert proxied.num_counted() == LIMIT


def test_gateway_applies_its_own_changes_without_redis(proxied: RedisBehindProxy):
    site, base_url = proxied.running.site, proxied.running.gateway.base_url
    user = proxied.running.headers("global key")
    policies = [{"effect": "allow", "permission_groups": [{"id": READ_ID}], "resources": {EVERYWHERE: "*"}}]

    def ask(method: str, path: str, body: object = None, headers: dict[str, str] = user) -> httpx.Response:
        return proxied.client.request(method, base_url + path, json=body, headers=headers)

    def create(path: str, body: object) -> tuple[str, str]:
        result = ask("POST", path, body).json()["result"]
        return result["id"], result.get("value", "")

    def runs(secret: str, account_id: str) -> int:
        headers = {"Authorization": f"Bearer {secret}"}
        return ask("POST", f"/accounts/{account_id}/ai/run/{PARROT}", {"prompt": "x"}, headers).status_code

    proxied.proxy.partition()
    token_id, secret = create("/user/tokens", {"name": "x", "policies": policies})
    assert runs(secret, site.tenants.account_id) == 200
    for _ in range(3):  # repeated because the cached decision expires now and then
        account_id, _ = create("/accounts", {"name": "Lab"})
        assert runs(secret, account_id) == 200
        path = f"/user/tokens/{token_id}"
        assert ask("PUT", path, {"name": "x", "policies": policies, "status": "disabled"}).status_code == 200
        assert runs(secret, account_id) == 401
        assert ask("PUT", path, {"name": "x", "policies": policies, "status": "active"}).status_code == 200
        assert runs(secret, account_id) == 200
        old, secret = secret, ask("PUT", f"{path}/value", {}).json()["result"]
        assert (runs(old, account_id), runs(secret, account_id)) == (401, 200)
        settings = {"name": "Lab", "settings": {"region": {"countries": ["US"]}}}
        assert ask("PUT", f"/accounts/{account_id}", settings).status_code == 200
        assert runs(secret, account_id) == 429
        assert ask("DELETE", f"/accounts/{account_id}").status_code == 200
        assert runs(secret, account_id) == 403
        assert ask("GET", f"/accounts/{account_id}").status_code == 403


@pytest.mark.parametrize("fault", ["partition", "silent loss", "delay", "refused connections"])
def test_silent_redis_costs_one_timeout_and_counters_are_correct_afterwards(proxied: RedisBehindProxy, fault: str):
    healthy, num_before = [timed_call(proxied) for _ in range(10)], proxied.num_locally_admitted
    if fault == "partition":
        proxied.proxy.partition()
    elif fault == "silent loss":
        proxied.proxy.drop_silently()
    elif fault == "delay":
        proxied.proxy.delay(3.0)
    else:
        proxied.proxy.refuses = True
        proxied.proxy.reset()
    during = [timed_call(proxied) for _ in range(20)]
    assert {status for status, _ in during} == {200}
    usual_s = statistics.median(took_s for _, took_s in healthy)
    assert statistics.median(took_s for _, took_s in during) <= usual_s + QUOTA_TIMEOUT_S
    assert proxied.num_locally_admitted >= num_before + 15
    assert proxied.running.gateway.is_ready()
    proxied.proxy.heal()
    proxied.proxy.reset()
    wait_until_blocking(lambda: proxied.num_counted() >= 30)
    statuses = [proxied.ask().status_code for _ in range(15)]
    assert (statuses.count(200), statuses.count(429)) == (10, 5), "locally admitted calls were not reported"
    median_ms = statistics.median(took_s for _, took_s in during) * 1000
    figure = f"{fault}: 20 of 20 calls answered, median {median_ms:.0f} ms; count exact afterwards"
    figures.record("P10", figure, f"pytest {Path(__file__).name}")


def timed_call(proxied: RedisBehindProxy) -> tuple[int, float]:
    began_s = time.monotonic()
    return proxied.ask().status_code, time.monotonic() - began_s


def test_repeated_report_of_a_call_is_counted_once(proxied: RedisBehindProxy):
    """The reply is lost, so the gateway admits the call by its local share and reports it afterwards. Redis counts one
    request.
    """
    assert proxied.ask().status_code == 200
    before, lost = proxied.num_counted(), proxied.proxy.num_lost_responses
    proxied.proxy.lose_response(lambda data: b"EVALSHA" in data and b"quota:r:" in data)
    # runs until the report is sent
    assert proxied.ask({"prompt": script(tokens=["x"] * 40, gap_s=0.05)}).status_code == 200
    assert proxied.proxy.num_lost_responses == lost + 1
    assert proxied.num_counted() == before + 1


def test_full_redis_is_treated_as_unavailable(proxied: RedisBehindProxy):
    assert proxied.ask().status_code == 200
    num_before = proxied.num_locally_admitted
    proxied.redis.config_set("maxmemory", 1)
    try:
        assert [proxied.ask().status_code for _ in range(5)] == [200] * 5
        assert proxied.num_locally_admitted > num_before
    finally:
        proxied.redis.config_set("maxmemory", 0)
    wait_until_blocking(lambda: proxied.num_counted() >= 6)


def test_stream_never_waits_for_redis(proxied: RedisBehindProxy):
    responses: list[httpx.Response] = []
    body = {"prompt": script(tokens=["x"] * 30, gap_s=0.02), "stream": True}
    thread = threading.Thread(target=lambda: responses.append(proxied.ask(body)))
    thread.start()
    wait_until_blocking(lambda: proxied.running.gateway.metric("hearth_calls_in_flight") == 1)
    proxied.proxy.partition()
    began_s = time.monotonic()
    thread.join(20)
    assert time.monotonic() - began_s < 5
    *events, _usage, done = events_of(responses[0])
    assert done == "[DONE]"
    assert sum(json.loads(event).get("response", "").count("x") for event in events) == 30
