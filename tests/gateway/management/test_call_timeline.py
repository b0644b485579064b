"""One call with its timeline: phases, retries and the nodes that were tried."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import httpx
import pytest

from gateway.management.call_timeline import phases_of
from tenants.usage.usage_entries import UsageEntry
from tests.gateway.inference.test_text_generation import script
from tests.gateway.process import PARROT
from tests.gateway.site import Running, Site
from tests.waiting import wait_until_blocking


@pytest.fixture(scope="module")
def running(new_site: Callable[..., Site]) -> Running:
    site = new_site()
    site.add_node("n1")
    site.add_node("n2")
    return Running(site, site.gateway().start())


def timeline(running: Running, request_id: str) -> dict[str, Any]:
    url = f"{running.account_url}/ai/usage/calls/{request_id}"

    def found() -> httpx.Response | None:
        response = httpx.get(url, headers=running.headers("keeper"))
        return response if response.status_code == 200 else None

    return wait_until_blocking(found).json()["result"]


def call(running: Running, prompt: str, session: str = "s", **body: Any) -> str:
    url, headers = f"{running.account_url}/ai/run/{PARROT}", running.headers() | {"x-session-affinity": session}
    response = httpx.post(url, json={"prompt": prompt, **body}, headers=headers, timeout=60)
    assert response.status_code == 200, response.text
    return response.headers["cf-ai-req-id"]


@pytest.mark.parametrize("is_stream", [False, True])
def test_phases_cover_the_call_and_follow_one_another(running: Running, is_stream: bool):
    found = timeline(running, call(running, script(first_s=0.05, gap_s=0.01), stream=is_stream))
    phases = found["phases"]
    assert {"prefill", "decode"} <= {phase["name"] for phase in phases}
    assert phases[0]["start_ms"] == 0
    assert phases[-1]["end_ms"] == pytest.approx(found["call"]["duration_ms"])
    for before, after in pairwise(phases):
        assert before["end_ms"] == after["start_ms"]
    assert (found["call"]["is_stream"], found["call"]["prefill_us"]) == (is_stream, 20)
    assert (found["num_retries"], found["nodes"]) == (0, [found["call"]["node_id"]])


def test_retried_call_names_the_nodes_in_order(running: Running):
    prompt = script(then="die", then_after=0, on="n1")
    for number in range(20):  # until a session goes to n1 first
        found = timeline(running, call(running, prompt, f"s{number}"))
        wait_until_blocking(lambda: running.gateway.metric("hearth_nodes_alive") == 2)
        if found["num_retries"]:
            break
    assert (found["num_retries"], found["nodes"], found["call"]["node_id"]) == (1, ["n1", "n2"], "n2")


def test_call_of_another_account_is_not_found(running: Running):
    request_id = call(running, "hello")
    timeline(running, request_id)
    other = f"{running.gateway.base_url}/accounts/{running.tenants.other_account_id}/ai/usage/calls/{request_id}"
    with running.signed_in("viewer") as browser:
        assert browser.get(other).status_code == 404
        assert browser.get(f"{running.account_url}/ai/usage/calls/{request_id}").status_code == 200


def entry(**fields: Any) -> UsageEntry:
    numbers = dict.fromkeys(("prompt_tokens", "cached_tokens", "completion_tokens", "micro_neurons"), 0)
    texts = dict.fromkeys(
        ("request_id", "account_id", "api_token_id", "model", "revision", "task", "pop", "node_id", "status"), "x"
    )
    base: dict[str, Any] = {"started_at": datetime.now(UTC), "attempts": 1, "is_stream": True, "duration_ms": 100.0}
    return UsageEntry(**{**numbers, **texts, **base, **fields})


def phases(**fields: Any) -> list[tuple[str, float, float]]:
    return [(phase.name, phase.start_ms, phase.end_ms) for phase in phases_of(entry(**fields))]


def test_phases_of_a_streamed_call():
    times = {"ttft_ms": 30.0, "queue_us": 5_000, "prefill_us": 20_000, "decode_us": 60_000}
    expected = [("queue", 0, 10), ("prefill", 10, 30), ("decode", 30, 90), ("send", 90, 100)]
    assert phases(**times) == expected


def test_phases_of_a_call_whose_output_arrives_at_once():
    times = {"ttft_ms": 100.0, "is_stream": False, "prefill_us": 20_000, "decode_us": 60_000}
    assert phases(**times) == [("queue", 0, 20), ("prefill", 20, 40), ("decode", 40, 100)]


def test_phases_of_a_call_without_output_or_without_a_report():
    assert phases(ttft_ms=None) == [("queue", 0, 100)]
    assert phases(ttft_ms=30.0) == [("queue", 0, 30), ("decode", 30, 100)]
    assert phases(ttft_ms=30.0, prefill_us=10**9, decode_us=10**9) == [("prefill", 0, 30), ("decode", 30, 100)]
