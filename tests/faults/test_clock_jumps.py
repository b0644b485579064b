"""Clock jumps: the wall clock of a real gateway jumps by an hour, a day and 40 days in both directions while it serves.

No quota is refilled, no token becomes valid or expires early, and all timers keep working.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from bench import figures
from storage.database import Database
from tenants import accounts
from tenants.credentials import user_tokens
from tenants.credentials.policies import Policy
from tenants.credentials.scopes import find_group
from tenants.credentials.user_tokens import TokenOwner, TokenSpec
from tests.faults.conftest import errors_in
from tests.gateway.inference.test_text_generation import events_of, script
from tests.gateway.process import PARROT, PEPPER
from tests.gateway.site import READ, Running, Site
from tests.waiting import wait_for_a_day_that_lasts, wait_until_blocking

pytestmark = pytest.mark.full

HOUR_S, DAY_S = 3600, 86_400
JUMPS_S = (HOUR_S, -HOUR_S, DAY_S, -DAY_S, 40 * DAY_S, 1)
LIMIT = 10_000


@dataclass
class ClockSite:
    """A gateway with an adjustable clock."""

    running: Running
    clock: Path
    client: httpx.Client

    def set_clock(self, wrong_by_s: float) -> None:
        temporary = self.clock.with_suffix(".new")
        temporary.write_text(str(wrong_by_s))
        temporary.replace(self.clock)

    def ask(
        self, account_id: str, secret: str, body: dict[str, object] | None = None, **headers: str
    ) -> httpx.Response:
        url = f"{self.running.gateway.base_url}/accounts/{account_id}/ai/run/{PARROT}"
        headers["Authorization"] = f"Bearer {secret}"
        return self.client.post(url, json=body or {"prompt": "x"}, headers=headers)


@pytest.fixture(scope="module")
def clocked_site(new_site: Callable[..., Site]) -> Iterator[ClockSite]:
    site = new_site()
    site.add_node("n1")
    clock = site.folder / "clock"
    clock.write_text("0")
    gateway = site.gateway(
        CLOCK_FILE=str(clock),
        HEARTH_FREE_NEURONS_PER_DAY="1",
        HEARTH_RATE_LIMITS=f"text-generation={LIMIT}/{DAY_S}",
        HEARTH_STALL_TIMEOUT_S="1.5",
        HEARTH_QUOTA_TIMEOUT_S="10",  # so that a slow machine does not count as a Redis outage
    )
    gateway.module = "tests.fakes.gateway_with_a_clock"
    with httpx.Client(timeout=60) as client:
        yield ClockSite(Running(site, gateway.start()), clock, client)
    assert errors_in(gateway) == ""
    assert gateway.stop() == 0


@pytest.fixture
def clocked(clocked_site: ClockSite) -> Iterator[ClockSite]:
    yield clocked_site
    clocked_site.set_clock(0)


@dataclass
class Tokens:
    account_id: str
    always: str
    for_half_an_hour: str
    from_half_an_hour_on: str
    over: str


async def new_tokens(site: Site, plan: str) -> Tokens:
    """Create four API tokens of a new account, whose quotas are unused."""
    database = Database.connect(site.database_url)
    now, half = datetime.now(UTC), timedelta(minutes=30)
    try:
        account_id = (await accounts.create(database, "clocked", plan=plan)).account_id
        group = find_group(READ)
        assert group is not None
        policy = Policy("p", "allow", (group.group_id,), (f"com.cloudflare.api.account.{account_id}",))
        created = [
            await user_tokens.create(
                database,
                PEPPER,
                TokenOwner("account", account_id),
                TokenSpec("x", (policy,), not_before=since, expires_at=until),
            )
            for since, until in ((None, None), (None, now + half), (now + half, None), (None, now - half))
        ]
        return Tokens(account_id, *(each.secret for each in created))
    finally:
        await database.close()


def test_token_validity_does_not_shift_with_the_clock(clocked: ClockSite):
    for wrong_by_s in (0, *JUMPS_S):
        tokens = asyncio.run(new_tokens(clocked.running.site, "paid"))
        secrets = (tokens.always, tokens.for_half_an_hour, tokens.from_half_an_hour_on, tokens.over)
        known = clocked.ask(tokens.account_id, tokens.for_half_an_hour).status_code
        clocked.set_clock(wrong_by_s)
        statuses = [clocked.ask(tokens.account_id, secret).status_code for secret in secrets]
        assert (known, statuses) == (200, [200, 200, 401, 401]), wrong_by_s
    figures.record(
        "P13", f"{len(JUMPS_S)} jumps up to 40 days: no token early or late", f"pytest {Path(__file__).name}"
    )


def test_clock_jump_refills_no_quota_and_restarts_no_window(clocked: ClockSite):
    wait_for_a_day_that_lasts(60)
    free = asyncio.run(new_tokens(clocked.running.site, "free"))
    paid = asyncio.run(new_tokens(clocked.running.site, "paid"))
    large_body = {"prompt": script(tokens=["x"] * 600), "max_tokens": 600}  # costs 0.6 neurons
    assert clocked.ask(free.account_id, free.always, large_body).status_code == 200
    left = int(clocked.ask(paid.account_id, paid.always).headers["ratelimit"].split(";")[1].removeprefix("r="))
    for number, wrong_by_s in enumerate(JUMPS_S, 1):
        clocked.set_clock(wrong_by_s)
        until_s = time.monotonic() + 1.2  # longer than the second for which quota decisions are cached
        while time.monotonic() < until_s:
            refused = clocked.ask(free.account_id, free.always, large_body)
            assert (refused.status_code, refused.json()["errors"][0]["code"]) == (429, 3036), wrong_by_s
        assert 0 < int(refused.headers["retry-after"]) <= DAY_S
        counted = clocked.ask(paid.account_id, paid.always)
        assert counted.headers["ratelimit"].startswith(f'"default";r={left - number};t='), wrong_by_s
        assert DAY_S - 120 <= int(counted.headers["ratelimit"].rpartition("t=")[2]) <= DAY_S
    figure = f"{len(JUMPS_S)} jumps up to 40 days: no quota refilled, no window restarted"
    figures.record("P13", figure, f"pytest {Path(__file__).name}")


@pytest.mark.parametrize("wrong_by_s", JUMPS_S)
def test_running_call_finishes_with_a_correct_usage_row_after_a_clock_jump(clocked: ClockSite, wrong_by_s: int):
    tokens = asyncio.run(new_tokens(clocked.running.site, "paid"))
    body = {"prompt": script(tokens=["x"] * 20, gap_s=0.02), "stream": True}
    responses: list[httpx.Response] = []
    began, gateway = datetime.now(UTC), clocked.running.gateway
    thread = threading.Thread(target=lambda: responses.append(clocked.ask(tokens.account_id, tokens.always, body)))
    thread.start()
    wait_until_blocking(lambda: gateway.metric("hearth_calls_in_flight") == 1)
    clocked.set_clock(wrong_by_s)
    thread.join(20)
    *events, _usage, done = events_of(responses[0])
    assert done == "[DONE]"
    assert sum(json.loads(event).get("response", "").count("x") for event in events) == 20
    responses.append(clocked.ask(tokens.account_id, tokens.always))
    for response, least_ms in zip(responses, (300, 0), strict=True):
        row = clocked.running.site.usage_row(response.headers["cf-ai-req-id"])
        assert least_ms < row["duration_ms"] < 20_000
        assert 0 <= row["ttft_ms"] <= row["duration_ms"]
        assert abs((datetime.fromisoformat(row["started_at"]).replace(tzinfo=UTC) - began).total_seconds()) < 60


@pytest.mark.parametrize("wrong_by_s", JUMPS_S)
def test_idempotent_responses_survive_a_clock_jump(clocked: ClockSite, wrong_by_s: int):
    """The key's lease does not end while the call runs, and the stored response does not expire."""
    tokens = asyncio.run(new_tokens(clocked.running.site, "paid"))
    marker = f"once {wrong_by_s} "
    body = {"prompt": script(tokens=[marker, *["only"] * 6], gap_s=0.2)}
    responses: list[httpx.Response] = []

    def ask() -> httpx.Response:
        return clocked.ask(tokens.account_id, tokens.always, body, **{"idempotency-key": f"a key {wrong_by_s}"})

    began_s = time.monotonic()
    thread = threading.Thread(target=lambda: responses.append(ask()))
    thread.start()
    node = clocked.running.site.nodes["n1"]
    wait_until_blocking(lambda: any(marker in str(execute) for execute in node.executes))
    clocked.set_clock(wrong_by_s)
    is_rejected_while_running = ask().status_code == 409
    assert is_rejected_while_running or time.monotonic() - began_s > 1.2
    thread.join(60)
    again = ask()
    assert (responses[0].status_code, again.status_code) == (200, 200)
    assert again.content == responses[0].content
    assert again.headers["idempotent-replayed"] == "true"
    assert sum(marker in str(execute) for execute in node.executes) == 1


def test_clock_jump_is_reported(clocked: ClockSite):
    gateway = clocked.running.gateway
    for wrong_by_s in (HOUR_S, -HOUR_S, 0):
        clocked.set_clock(wrong_by_s)
        wait_until_blocking(lambda: abs(gateway.metric("hearth_clock_ahead_seconds") - wrong_by_s) < 10)  # noqa: B023
    assert [
        line for line in gateway.log_lines() if line["message"] == "this machine's clock differs from the Redis clock"
    ]


def test_timers_work_after_a_clock_jump(clocked: ClockSite):
    tokens = asyncio.run(new_tokens(clocked.running.site, "paid"))
    for wrong_by_s in (HOUR_S, -DAY_S, 40 * DAY_S):
        clocked.set_clock(wrong_by_s)
        body = {"prompt": script(then_after=1, then="hang"), "stream": True}
        began_s = time.monotonic()
        response = clocked.ask(tokens.account_id, tokens.always, body)
        assert "3007" in response.text, wrong_by_s
        assert 1.4 < time.monotonic() - began_s < 15
        assert clocked.running.gateway.is_ready()
