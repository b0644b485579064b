"""Fairness between accounts: a flood from one account is rejected and does not affect other accounts."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis import Redis

from bench import figures
from storage.database import Database
from tenants import accounts
from tests.gateway.inference.test_text_generation import script
from tests.gateway.process import PARROT, GatewayProcess
from tests.gateway.site import Running, Site
from tests.waiting import wait_until, wait_until_blocking

HELD = {"prompt": script(held_after=0)}
BEGUN = {"prompt": script(held_after=1), "stream": True}
SLOW = {"prompt": script(tokens=["x"] * 8, first_s=0.2, gap_s=0.05)}


async def set_limits(site: Site, account_id: str, limits: str) -> None:
    database = Database.connect(site.database_url)
    try:
        await accounts.set_terms(database, account_id, limits=limits)
    finally:
        await database.close()


@contextmanager
def limited(running: Running, limits: str) -> Iterator[None]:
    """Apply limits to the other account at the running gateway."""
    account_id = running.tenants.other_account_id
    asyncio.run(set_limits(running.site, account_id, limits + ", account=1000/60"))
    try:
        with httpx.Client(headers=running.headers("other"), timeout=60) as client:
            url = url_of(running, "other", running.gateway)
            wait_until_blocking(lambda: "ratelimit" in client.post(url, json={"prompt": "x"}).headers)
        yield
    finally:
        asyncio.run(set_limits(running.site, account_id, ""))


def url_of(running: Running, whose: str, gateway: GatewayProcess) -> str:
    account_id = running.tenants.other_account_id if whose == "other" else running.tenants.account_id
    return f"{gateway.base_url}/accounts/{account_id}/ai/run/{PARROT}"


async def ask(
    client: httpx.AsyncClient, running: Running, whose: str, gateway: GatewayProcess, body: dict[str, Any]
) -> httpx.Response:
    return await client.post(url_of(running, whose, gateway), json=body, headers=running.headers(whose))


def test_calls_above_the_concurrency_limit_are_rejected_without_affecting_other_accounts(running: Running):
    async def run() -> None:
        async with httpx.AsyncClient(timeout=60) as client:
            flood = [asyncio.ensure_future(ask(client, running, "other", running.gateway, HELD)) for _ in range(10)]
            await wait_until(lambda: sum(job.done() for job in flood) == 8)
            for _ in range(5):
                response = await ask(client, running, "good", running.gateway, {"prompt": "x"})
                assert response.status_code == 200
            assert sum(job.done() for job in flood) == 8, "the others were served meanwhile"
            for job in flood:
                if not job.done():
                    job.cancel()
                    continue
                refused = await job
                assert (refused.status_code, refused.json()["errors"][0]["code"]) == (429, 3040)
                assert "of this account at once" in refused.json()["errors"][0]["message"]
                assert 1 <= int(refused.headers["retry-after"]) <= 60
            await wait_until(lambda: running.gateway.metric("hearth_calls_in_flight") == 0)
            again = await ask(client, running, "other", running.gateway, {"prompt": "x"})
            assert again.status_code == 200

    with limited(running, "account.calls=2"):
        asyncio.run(run())


@pytest.mark.full
def test_waiting_calls_have_their_own_limit(new_site: Callable[..., Site]):
    site = new_site()
    site.add_node("n1")
    running = Running(site, site.gateway(HEARTH_RATE_LIMITS="account.waiting=1").start())
    waiting = f"quota:w:account:{running.tenants.other_account_id}"

    async def run(redis: Redis) -> None:
        async with httpx.AsyncClient(timeout=60) as client, asyncio.TaskGroup() as group:

            async def stream(has_output: asyncio.Event) -> str:
                url, headers = url_of(running, "other", running.gateway), running.headers("other")
                async with client.stream("POST", url, json=BEGUN, headers=headers) as response:
                    text = ""
                    async for piece in response.aiter_text():
                        has_output.set()
                        text += piece
                    return text

            begun = [asyncio.Event() for _ in range(3)]
            streams = []
            for event in begun:  # waits for output, so each call is admitted before the next is sent
                streams.append(group.create_task(stream(event)))
                await event.wait()
                await wait_until(lambda: not redis.exists(waiting))
            late = group.create_task(ask(client, running, "other", running.gateway, HELD))
            await wait_until(lambda: redis.zcard(waiting) == 1)
            refused = await ask(client, running, "other", running.gateway, HELD)
            assert refused.status_code == 429
            assert "of this account are waiting for their first output" in refused.json()["errors"][0]["message"]
            site.nodes["n1"].go_on()
            assert (await late).status_code == 200
            assert [(await job).endswith("data: [DONE]\n\n") for job in streams] == [True] * 3

    with closing(Redis.from_url(site.redis.url)) as redis:
        asyncio.run(run(redis))


@contextmanager
def half_sent(running: Running, gateway: GatewayProcess, count: int) -> Iterator[list[socket.socket]]:
    """Open connections of the other account that have sent the request head but not the body."""
    path = httpx.URL(url_of(running, "other", gateway)).path
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n"
    head += f"Authorization: {running.headers('other')['Authorization']}\r\n\r\n"
    with ExitStack() as stack:
        opened = [stack.enter_context(socket.create_connection(("127.0.0.1", gateway.port))) for _ in range(count)]
        for connection in opened:
            connection.sendall(head.encode())
        yield opened


@pytest.mark.full
def test_slow_bodies_leave_slots_for_other_accounts(new_site: Callable[..., Site]):
    """No limit is configured: the share of a gateway's slots available to one account is built in."""
    site = new_site()
    site.add_node("n1")
    running = Running(site, site.gateway(HEARTH_MAX_CALLS="30", HEARTH_BODY_TIMEOUT_S="30").start())
    with half_sent(running, running.gateway, 40) as opened:
        wait_until_blocking(lambda: running.gateway.metric("hearth_calls_in_flight") == 20)
        wait_until_blocking(lambda: sum(map(is_refused, opened)) == 20)
        with httpx.Client(headers=running.headers(), timeout=60) as client:
            for _ in range(20):
                assert client.post(url_of(running, "good", running.gateway), json={"prompt": "x"}).status_code == 200


def is_refused(connection: socket.socket) -> bool:
    try:
        response = connection.recv(4096, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    assert response.startswith(b"HTTP/1.1 429 "), response
    assert b"retry-after: " in response.lower()
    return True


@pytest.mark.full
def test_concurrency_limit_across_three_gateways_leaves_other_accounts_unaffected(
    new_site: Callable[..., Site],
):
    site = new_site()
    site.add_node("n1")
    limits = "account.calls=6, account.waiting=6"
    gateways = [site.gateway(HEARTH_RATE_LIMITS=limits, HEARTH_QUOTA_TIMEOUT_S="10").start() for _ in range(3)]
    running = Running(site, gateways[0])
    most_at_once = 0

    async def run() -> tuple[Counter[int], list[int]]:
        nonlocal most_at_once
        statuses: Counter[int] = Counter()
        quiet: list[int] = []
        is_over = False
        async with httpx.AsyncClient(timeout=30, limits=httpx.Limits(max_connections=None)) as client:

            async def flood(number: int) -> None:
                while not is_over:
                    response = await ask(client, running, "other", gateways[number % 3], SLOW)
                    statuses[response.status_code] += 1
                    if response.status_code == 429:
                        wait_s = int(response.headers["retry-after"])
                        assert 1 <= wait_s <= 60
                        await asyncio.sleep(min(wait_s, 0.2))  # ignores the longer waits that Retry-After requests

            async def watch() -> None:
                nonlocal most_at_once
                while not is_over:
                    most_at_once = max(most_at_once, site.nodes["n1"].num_open_calls)
                    await asyncio.sleep(0.005)

            async with asyncio.TaskGroup() as group:
                for number in range(30):
                    group.create_task(flood(number))
                await wait_until(lambda: statuses[429] >= 30)
                group.create_task(watch())
                for number in range(40):
                    response = await ask(client, running, "good", gateways[number % 3], {"prompt": "x"})
                    quiet.append(response.status_code)
                await wait_until(lambda: statuses[200] >= 18)
                is_over = True
        return statuses, quiet

    statuses, quiet = asyncio.run(run())
    assert quiet == [200] * 40
    assert statuses.keys() == {200, 429}
    assert most_at_once <= 7, "six of the flood, one of the other"
    figure = f"flood over 3 gateways: 6 at once as its limit says, {statuses[429]} refused, 40 of 40 of another served"
    figures.record("T16", figure, f"pytest {Path(__file__).name}")
