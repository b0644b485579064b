"""The rows about Redis: flushed, restarted, parted, slow, full, its answers lost. Clients go on; no count begins anew.

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
class Parted:
    """A gateway that sees its Redis through a proxy, and the account whose calls are counted."""

    running: Running
    proxy: FaultProxy
    client: httpx.Client
    redis: Redis
    account_id: str = ""
    secret: str = ""

    async def begin(self, plan: str = "paid") -> None:
        """Healthy, with an account of which nothing was counted yet."""
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

    def counted(self) -> int:
        """Requests in the window, by Redis."""
        return int(self.redis.hget(WINDOW.format(account=self.account_id), "n") or 0)  # type: ignore[arg-type]

    @property
    def num_let_in_alone(self) -> float:
        return self.running.gateway.metric("hearth_local_quota_calls_total")


@pytest.fixture(scope="module")
def parted_site(new_site: Callable[..., Site]) -> Iterator[Parted]:
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
            yield Parted(Running(site, gateway.start()), proxy, client, redis)
        assert errors_in(gateway) == ""
        assert gateway.stop() == 0


@pytest.fixture
def parted(parted_site: Parted) -> Parted:
    asyncio.run(parted_site.begin())
    wait_until_blocking(lambda: is_counted(parted_site), interval_s=0.1)
    asyncio.run(parted_site.begin())
    return parted_site


def is_counted(parted: Parted) -> bool:
    """Whether Redis, and not the gateway alone, counts what is asked."""
    before = parted.num_let_in_alone
    parted.ask()
    return parted.num_let_in_alone == before


def test_flush_restarts_no_quota_window(parted: Parted):
    assert [parted.ask().status_code for _ in range(30)] == [200] * 30
    parted.redis.flushall()
    parted.redis.script_flush()
    statuses = [parted.ask().status_code for _ in range(20)]
    assert (statuses.count(200), statuses.count(429)) == (10, 10), statuses
    # A gateway that was slow to give its scripts again counted alone so long, and tells Redis with a later call.
    later: list[int] = []
    wait_until_blocking(lambda: later.append(parted.ask().status_code) or parted.counted() == LIMIT, interval_s=0.1)
    assert set(later) == {429}


def test_flush_refunds_no_budget(parted: Parted):
    wait_for_a_day_that_lasts(60)
    asyncio.run(parted.begin("free"))
    most: dict[str, object] = {"prompt": script(tokens=["x"] * 600), "max_tokens": 600}  # 0.6 of the day's one neuron
    answer = parted.ask(most)
    assert answer.status_code == 200
    spent = parted.running.site.usage_row(answer.headers["cf-ai-req-id"])["micro_neurons"]
    for _ in range(2):
        parted.redis.flushall()
        refused = parted.ask(most)
        assert (refused.status_code, refused.json()["errors"][0]["code"]) == (429, 3036)
        [key] = parted.redis.keys(f"neurons:day:{parted.account_id}:*")  # type: ignore[misc]
        assert int(parted.redis.hget(key, "u") or 0) == spent > 500_000, "what Redis counts is the ledger's word"  # type: ignore[arg-type]


def test_restart_without_data_restarts_no_quota_window(parted: Parted):
    site = parted.running.site
    assert [parted.ask().status_code for _ in range(25)] == [200] * 25
    site.redis.stop()
    parted.proxy.reset()
    during = [parted.ask().status_code for _ in range(5)]
    site.redis.start()
    site.redis.wait_ready()
    statuses: list[int] = []
    wait_until_blocking(lambda: statuses.append(parted.ask().status_code) or parted.counted() > 0, interval_s=0.1)
    while len(statuses) < 30:
        statuses.append(parted.ask().status_code)
    assert set(during) == {200}
    assert set(statuses) == {200, 429}
    assert during.count(200) + statuses.count(200) == LIMIT - 25
    assert parted.counted() == LIMIT


def test_gateway_applies_its_own_changes_without_redis(parted: Parted):
    site, base_url = parted.running.site, parted.running.gateway.base_url
    user = parted.running.headers("global key")
    policies = [{"effect": "allow", "permission_groups": [{"id": READ_ID}], "resources": {EVERYWHERE: "*"}}]

    def ask(method: str, path: str, body: object = None, headers: dict[str, str] = user) -> httpx.Response:
        return parted.client.request(method, base_url + path, json=body, headers=headers)

    def made(path: str, body: object) -> tuple[str, str]:
        result = ask("POST", path, body).json()["result"]
        return result["id"], result.get("value", "")

    def runs(secret: str, account_id: str) -> int:
        headers = {"Authorization": f"Bearer {secret}"}
        return ask("POST", f"/accounts/{account_id}/ai/run/{PARROT}", {"prompt": "x"}, headers).status_code

    parted.proxy.part()
    token_id, secret = made("/user/tokens", {"name": "x", "policies": policies})
    assert runs(secret, site.tenants.account_id) == 200
    for _ in range(3):  # once in a while the database is looked at just in time
        account_id, _ = made("/accounts", {"name": "Lab"})
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


@pytest.mark.parametrize("how", ["parted", "vanished", "slow", "refusing"])
def test_silent_redis_costs_one_timeout_and_counters_are_correct_afterwards(parted: Parted, how: str):
    healthy, alone = [timed(parted) for _ in range(10)], parted.num_let_in_alone
    if how == "parted":
        parted.proxy.part()
    elif how == "vanished":
        parted.proxy.vanish()
    elif how == "slow":
        parted.proxy.slow(3.0)
    else:
        parted.proxy.refuses = True
        parted.proxy.reset()
    during = [timed(parted) for _ in range(20)]
    assert {status for status, _ in during} == {200}
    usual_s = statistics.median(took_s for _, took_s in healthy)
    assert statistics.median(took_s for _, took_s in during) <= usual_s + QUOTA_TIMEOUT_S
    assert parted.num_let_in_alone >= alone + 15
    assert parted.running.gateway.is_ready()
    parted.proxy.heal()
    parted.proxy.reset()
    wait_until_blocking(lambda: parted.counted() >= 30)
    statuses = [parted.ask().status_code for _ in range(15)]
    assert (statuses.count(200), statuses.count(429)) == (10, 5), "what it let in alone was told"
    median_ms = statistics.median(took_s for _, took_s in during) * 1000
    told = f"{how}: 20 of 20 calls answered meanwhile, median {median_ms:.0f} ms; the count exact afterwards"
    figures.record("P10", told, f"pytest {Path(__file__).name}")


def timed(parted: Parted) -> tuple[int, float]:
    began_s = time.monotonic()
    return parted.ask().status_code, time.monotonic() - began_s


def test_repeated_report_of_a_call_is_counted_once(parted: Parted):
    """Its answer is lost, the gateway lets it in by its share and tells of it afterwards: one request, not two."""
    assert parted.ask().status_code == 200
    before, lost = parted.counted(), parted.proxy.num_answers_lost
    parted.proxy.lose_answer(lambda data: b"EVALSHA" in data and b"quota:r:" in data)
    assert parted.ask({"prompt": script(tokens=["x"] * 40, gap_s=0.05)}).status_code == 200  # over by then
    assert parted.proxy.num_answers_lost == lost + 1
    assert parted.counted() == before + 1


def test_full_redis_is_treated_as_unavailable(parted: Parted):
    assert parted.ask().status_code == 200
    alone = parted.num_let_in_alone
    parted.redis.config_set("maxmemory", 1)
    try:
        assert [parted.ask().status_code for _ in range(5)] == [200] * 5
        assert parted.num_let_in_alone > alone
    finally:
        parted.redis.config_set("maxmemory", 0)
    wait_until_blocking(lambda: parted.counted() >= 6)


def test_stream_never_waits_for_redis(parted: Parted):
    answers: list[httpx.Response] = []
    body = {"prompt": script(tokens=["x"] * 30, gap_s=0.02), "stream": True}
    thread = threading.Thread(target=lambda: answers.append(parted.ask(body)))
    thread.start()
    wait_until_blocking(lambda: parted.running.gateway.metric("hearth_calls_in_flight") == 1)
    parted.proxy.part()
    began_s = time.monotonic()
    thread.join(20)
    assert time.monotonic() - began_s < 5
    *events, _usage, done = events_of(answers[0])
    assert done == "[DONE]"
    assert sum(json.loads(event).get("response", "").count("x") for event in events) == 30
