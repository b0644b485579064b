"""Limits over three gateway processes at once: at a window's edge, while Redis is away, and when it is back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from bench import figures
from storage.database import Database
from tenants import accounts
from tenants.credentials import api_tokens
from tests.gateway.process import PARROT, PEPPER, GatewayProcess
from tests.gateway.site import READ, Site
from tests.waiting import wait_until_blocking

pytestmark = pytest.mark.full

LIMIT, WINDOW_S = 50, 86_400
BRIEF_LIMIT, BRIEF_S = 20, 2  # of an account that has limits of its own


@dataclass
class Three:
    site: Site
    gateways: list[GatewayProcess]

    def new_account(self, limits: str = "") -> tuple[str, str]:
        """Id and secret."""

        async def make() -> tuple[str, str]:
            database = Database.connect(self.site.database_url)
            try:
                account_id = (await accounts.create(database, "three")).account_id
                if limits:
                    await accounts.set_terms(database, account_id, limits=limits)
                return account_id, (await api_tokens.create(database, PEPPER, account_id, "x", [READ])).secret
            finally:
                await database.close()

        return asyncio.run(make())

    async def ask(self, client: httpx.AsyncClient, number: int, account: tuple[str, str]) -> httpx.Response:
        account_id, secret = account
        url = f"{self.gateways[number % 3].base_url}/accounts/{account_id}/ai/run/{PARROT}"
        return await client.post(url, json={"prompt": "x"}, headers={"Authorization": f"Bearer {secret}"})

    def ask_at_once(self, count: int, account: tuple[str, str]) -> list[int]:
        """Statuses of so many calls, sent together."""

        async def ask_all() -> list[int]:
            async with httpx.AsyncClient(timeout=60) as client:
                answers = await asyncio.gather(*(self.ask(client, number, account) for number in range(count)))
                return [answer.status_code for answer in answers]

        return asyncio.run(ask_all())

    def counts_together(self) -> bool:
        """Whether Redis is asked by all: one that has just lost it comes back in its own time."""
        before = [gateway.metric("hearth_local_quota_calls_total") for gateway in self.gateways]
        assert self.ask_at_once(3, self.new_account()) == [200] * 3
        return before == [gateway.metric("hearth_local_quota_calls_total") for gateway in self.gateways]


@pytest.fixture(scope="module")
def three(new_site: Callable[..., Site]) -> Iterator[Three]:
    site = new_site()
    site.add_node("n1")
    settings = {"HEARTH_RATE_LIMITS": f"account={LIMIT}/{WINDOW_S}", "HEARTH_QUOTA_TIMEOUT_S": "5"}
    gateways = [site.gateway(**settings).start() for _ in range(3)]
    wait_until_blocking(lambda: all(gateway.metric("hearth_gateways") == 3 for gateway in gateways))
    yield Three(site, gateways)
    for gateway in gateways:
        assert gateway.stop() == 0


def test_quota_is_exact_at_the_window_boundary_with_a_correct_retry_after(three: Three):
    """Six clients ask without a pause through three gateways, over the ends of several windows."""
    assert any(all_are_let_in_in_time(three) for _ in range(3)), "who waits as long as was said is let in"


def all_are_let_in_in_time(three: Three) -> bool:
    """Whether what there is room for is let in, and when it was said: not where the machine stood still meanwhile."""
    wait_until_blocking(three.counts_together, interval_s=0.1)
    account = three.new_account(f"account={BRIEF_LIMIT}/{BRIEF_S}")
    passed: list[tuple[float, float]] = []  # between when and when a call was let in
    refused: list[tuple[float, float]] = []  # when it was told so, and how long to wait

    async def client_of(number: int, until_s: float) -> None:
        async with httpx.AsyncClient(timeout=60) as client:
            while time.monotonic() < until_s:
                began_s = time.monotonic()
                answer = await three.ask(client, number, account)
                now_s = time.monotonic()
                if answer.status_code == 200:
                    passed.append((began_s, now_s))
                    left, reset_s = (int(part[2:]) for part in answer.headers["ratelimit"].split(";")[1:])
                    assert (0 <= left < BRIEF_LIMIT, 1 <= reset_s <= BRIEF_S) == (True, True)
                else:
                    assert answer.status_code == 429
                    refused.append((now_s, float(answer.headers["retry-after"])))
                    await asyncio.sleep(0.02)

    async def run() -> None:
        until_s = time.monotonic() + 3.5 * BRIEF_S
        await asyncio.gather(*(client_of(number, until_s) for number in range(6)))

    asyncio.run(run())
    assert refused
    first_s = min(began_s for began_s, _ in passed)
    took_s = max(ended_s for _, ended_s in passed) - first_s
    num_windows = int(took_s / BRIEF_S) + 1
    assert len(passed) <= BRIEF_LIMIT * num_windows, "never more than the limit for each window that fits"
    return len(passed) >= BRIEF_LIMIT * (num_windows - 1) and all(
        any(began_s <= told_s + wait_s + 1 and ended_s >= told_s for began_s, ended_s in passed)
        or told_s + wait_s > first_s + 3.5 * BRIEF_S - 1
        for told_s, wait_s in refused
    )


def test_gateways_together_enforce_the_limit_during_and_after_a_redis_outage(three: Three):
    account = three.new_account()
    assert three.ask_at_once(6, account) == [200] * 6
    three.site.redis.stop()
    try:
        statuses = three.ask_at_once(200, account)
    finally:
        three.site.redis.start()
        three.site.redis.wait_ready()
    num_in = 6 + statuses.count(200)
    assert set(statuses) == {200, 429}
    assert LIMIT * 0.8 <= num_in <= LIMIT * 1.1
    wait_until_blocking(lambda: all(gateway.is_ready() for gateway in three.gateways))
    after: list[int] = []
    # They tell Redis what they let in alone: from then on the rest of the window is counted by all together.
    wait_until_blocking(
        lambda: after.extend(three.ask_at_once(12, account)) or after[-12:] == [429] * 12, interval_s=0.1
    )
    assert num_in + after.count(200) <= LIMIT * 1.1
    told = f"Redis down: {num_in} of 206 calls through 3 gateways admitted, room for {LIMIT}"
    figures.record("P8", told, f"pytest {Path(__file__).name}")
