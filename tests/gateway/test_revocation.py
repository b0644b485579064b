"""A revoked token is rejected by every gateway within 5 s, or 35 s if Redis is unavailable, and stays rejected."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench import figures
from storage.database import Database
from tenants import accounts
from tenants.credentials import api_tokens
from tests.faults.proxy import FaultProxy
from tests.gateway.process import PARROT, PEPPER, GatewayProcess
from tests.gateway.site import READ, Running, Site
from tests.waiting import wait_until_blocking

pytestmark = pytest.mark.full


@dataclass
class Gateways:
    """Three gateways of one site: two connect to Redis directly, the third through a proxy."""

    site: Site
    processes: list[GatewayProcess]
    proxy: FaultProxy

    def status(self, gateway: GatewayProcess, secret: str) -> int:
        url = f"{gateway.base_url}/accounts/{self.site.tenants.account_id}/ai/run/{PARROT}"
        return httpx.post(
            url, json={"prompt": "x"}, headers={"Authorization": f"Bearer {secret}"}, timeout=60
        ).status_code

    def new_token(self) -> api_tokens.CreatedToken:
        """Create a token and use it at every gateway, so that every gateway has cached it."""
        made = asyncio.run(self.with_database(lambda database: api_tokens.create(
            database, PEPPER, self.site.tenants.account_id, "short-lived", [READ]
        )))  # fmt: skip
        for gateway in self.processes:
            for _ in range(2):
                assert self.status(gateway, made.secret) == 200
        return made

    async def with_database(self, job: Callable[[Database], object]) -> Any:
        database = Database.connect(self.site.database_url)
        try:
            return await job(database)  # type: ignore[misc]
        finally:
            await database.close()

    def new_token_over_api(self) -> tuple[str, str]:
        """Create a token through the first gateway's API and return its id and secret."""
        groups = self.ask("GET", "/permission_groups")
        group = next(group for group in groups if group["name"] == READ)
        resources = {f"com.cloudflare.api.account.{self.site.tenants.account_id}": "*"}
        policy = {"effect": "allow", "permission_groups": [{"id": group["id"]}], "resources": resources}
        made = self.ask("POST", "", json={"name": "short-lived", "policies": [policy]})
        for gateway in self.processes:
            assert self.status(gateway, made["value"]) == 200
        return made["id"], made["value"]

    def ask(self, method: str, path: str, **sent: Any) -> Any:
        url = f"{self.processes[0].base_url}/accounts/{self.site.tenants.account_id}/tokens{path}"
        owner = Running(self.site, self.processes[0]).headers("global key")
        response = httpx.request(method, url, headers=owner, timeout=60, **sent)
        assert response.status_code == 200, response.text
        return response.json()["result"]

    def revoke_in_database(self, token: api_tokens.CreatedToken) -> None:
        """Revoke the token in the database only, as a CLI command without access to Redis does."""
        account_id, token_id = self.site.tenants.account_id, token.token.api_token_id
        asyncio.run(self.with_database(lambda database: api_tokens.revoke(database, account_id, token_id)))

    def seconds_until_refused(self, secret: str, deadline_s: float) -> float:
        """Return the seconds until every gateway rejects the token, and assert that no gateway accepts it again."""
        began_s = time.monotonic()
        for gateway in self.processes:
            wait_until_blocking(lambda: self.status(gateway, secret) == 401, deadline_s, 0.05)  # noqa: B023
        took_s = time.monotonic() - began_s
        for gateway in self.processes * 3:
            assert self.status(gateway, secret) == 401
        return took_s


@pytest.fixture
def gateways(new_site: Callable[..., Site]) -> Iterator[Gateways]:
    site = new_site()
    site.add_node("n1")
    redis = Path(site.redis.url.removeprefix("unix://").partition("?")[0])
    with FaultProxy(redis) as proxy:
        behind = site.gateway(REDIS_URL=f"redis://127.0.0.1:{proxy.port}")
        processes = [site.gateway().start(), site.gateway().start(), behind.start()]
        yield Gateways(site, processes, proxy)
        for gateway in processes:
            gateway.stop()


def test_revoked_token_is_rejected_by_every_gateway_within_five_seconds(gateways: Gateways):
    took_s = []
    for _ in range(3):
        api_token_id, secret = gateways.new_token_over_api()
        gateways.ask("DELETE", f"/{api_token_id}")
        took_s.append(gateways.seconds_until_refused(secret, 5.0))
    assert max(took_s) <= 5.0
    token = gateways.new_token()
    gateways.revoke_in_database(token)
    untold_s = gateways.seconds_until_refused(token.secret, 5.0)
    assert untold_s <= 5.0, "also without a message from Redis"
    figure = f"refused by 3 gateways within {max(took_s):.1f} s, {untold_s:.1f} s without messages from Redis"
    figures.record("T4", figure, f"pytest {Path(__file__).name}")


def test_blocked_account_is_rejected_by_every_gateway_within_five_seconds_until_unblocked(
    gateways: Gateways,
):
    """The operator's command blocks the account without access to Redis."""
    token, account_id = gateways.new_token(), gateways.site.tenants.account_id

    def until(status: int) -> float:
        began_s = time.monotonic()
        for gateway in gateways.processes:
            wait_until_blocking(lambda: gateways.status(gateway, token.secret) == status, 5.0, 0.05)  # noqa: B023
        return time.monotonic() - began_s

    asyncio.run(gateways.with_database(lambda database: accounts.set_blocked(database, account_id, True)))
    took_s = until(403)
    asyncio.run(gateways.with_database(lambda database: accounts.set_blocked(database, account_id, False)))
    until(200)
    figure = f"an account blocked in the database alone: refused by 3 gateways within {took_s:.1f} s"
    figures.record("T4", figure, f"pytest {Path(__file__).name}")


def test_revoked_token_is_rejected_within_thirty_five_seconds_by_a_gateway_without_redis(gateways: Gateways):
    token = gateways.new_token()
    gateways.proxy.partition()
    gateways.revoke_in_database(token)
    assert gateways.seconds_until_refused(token.secret, 35.0) <= 35.0
    gateways.proxy.heal()
    assert gateways.seconds_until_refused(token.secret, 5.0) <= 5.0, "and after it, at once"


def test_revoked_token_is_rejected_within_thirty_five_seconds_without_redis_and_after_recovery(
    gateways: Gateways,
):
    token = gateways.new_token()
    gateways.site.redis.stop()
    gateways.revoke_in_database(token)
    assert gateways.seconds_until_refused(token.secret, 35.0) <= 35.0
    gateways.site.redis.start()
    gateways.site.redis.wait_ready()
    wait_until_blocking(lambda: all(gateway.is_ready() for gateway in gateways.processes))
    assert gateways.seconds_until_refused(token.secret, 5.0) <= 5.0
