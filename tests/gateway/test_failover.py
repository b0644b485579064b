"""Failover: the retry budget, and calls that are hedged on a second node."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import httpx
import pytest

from gateway.failover import MIN_SAMPLES, AttemptBudget, Failover, FirstEventTimes
from gateway.failover_settings import FailoverSettings
from tests.fakes.node import WORDS
from tests.gateway.inference.test_text_generation import events_of, run, script
from tests.gateway.site import Running, Site
from tests.waiting import wait_until_blocking

TEXT = "".join(WORDS)


def test_second_attempts_are_limited_to_a_share_of_the_calls():
    budget = AttemptBudget(0.1, 5)
    assert [budget.take() for _ in range(6)] == [True] * 5 + [False]
    num_taken = 0
    for _ in range(1000):
        budget.add_call()
        num_taken += budget.take()
    assert 99 <= num_taken <= 100


def test_budget_does_not_grow_above_its_burst():
    budget = AttemptBudget(0.1, 2)
    for _ in range(1000):
        budget.add_call()
    assert [budget.take() for _ in range(3)] == [True, True, False]


def test_slow_first_event_is_the_95th_percentile_of_enough_samples():
    times = FirstEventTimes()
    for number in range(MIN_SAMPLES - 1):
        times.add(number)
    assert times.slow_s == 0
    for number in range(200):
        times.add(number % 100)
    assert 90 <= times.slow_s <= 99


def failover(**settings) -> Failover:
    return Failover(FailoverSettings(**{"hedge_after_s": 0.2, **settings}))


def test_only_short_calls_outside_batches_are_hedged_once_the_model_is_known():
    hedging = failover(hedge_max_bytes=1000)
    assert hedging.hedge_delay_s("m", 100, is_batch=False) is None
    for _ in range(64):
        hedging.add_first_event("m", 0.5)
    assert hedging.hedge_delay_s("m", 100, is_batch=False) == 1.0
    assert hedging.hedge_delay_s("m", 1001, is_batch=False) is None
    assert hedging.hedge_delay_s("m", 100, is_batch=True) is None
    assert hedging.hedge_delay_s("other", 100, is_batch=False) is None
    assert failover(hedge_after_s=0).hedge_delay_s("m", 100, is_batch=False) is None


def test_hedges_stay_within_both_budgets():
    assert not failover(hedge_budget=0.0).take_hedge()
    few = failover(retry_burst=1)
    assert [few.take_hedge(), few.take_hedge()] == [True, False]
    hedging = failover(hedge_budget=0.02)
    assert sum(hedging.take_hedge() for _ in range(10)) == 5
    for _ in range(100):
        hedging.add_call()
    assert sum(hedging.take_hedge() for _ in range(10)) == 2


@pytest.fixture(scope="module")
def hedging(new_site: Callable[..., Site]) -> Running:
    """A site whose gateway hedges after 0.2 s, and has seen enough calls to do so."""
    site = new_site()
    site.add_node("n1")
    site.add_node("n2")
    gateway = site.gateway(HEARTH_HEDGE_AFTER_S="0.2", HEARTH_HEDGE_BUDGET="1", HEARTH_FIRST_EVENT_TIMEOUT_S="60")
    running = Running(site, gateway.start())
    wait_until_blocking(lambda: gateway.metric("hearth_nodes_alive") == 2)
    with httpx.Client(headers=running.headers(), timeout=60) as client:
        for _ in range(2 * MIN_SAMPLES):
            run(client, running, {"prompt": "x"}).raise_for_status()
    return running


@pytest.fixture
def client(hedging: Running) -> Iterator[httpx.Client]:
    with httpx.Client(headers=hedging.headers(), timeout=60) as client:
        yield client


def home_of(client: httpx.Client, running: Running) -> str:
    response = run(client, running, {"prompt": "x"}, headers={"x-session-affinity": "s"})
    return str(running.site.usage_row(response.headers["cf-ai-req-id"])["node_id"])


@pytest.mark.parametrize("is_stream", [False, True])
def test_call_that_waits_too_long_is_answered_once_by_a_second_node(client, hedging: Running, is_stream: bool):
    home = home_of(client, hedging)
    prompt = script(on=home, first_s=30.0)
    response = run(client, hedging, {"prompt": prompt, "stream": is_stream}, headers={"x-session-affinity": "s"})
    assert response.elapsed.total_seconds() < 20
    if is_stream:
        assert events_of(response)[-1] == "[DONE]"
    else:
        assert response.json()["result"]["response"] == TEXT
    request_id = response.headers["cf-ai-req-id"]
    row = hedging.site.usage_row(request_id)
    assert (row["attempts"], row["completion_tokens"]) == (2, len(WORDS))
    assert row["node_id"] != home
    assert len(hedging.site.usage_rows(request_id)) == 1
    wait_until_blocking(lambda: request_id in hedging.site.nodes[home].cancels)
    assert hedging.gateway.metric('hearth_hedges_total{first="second"}') >= 1


def test_first_node_wins_if_its_first_event_arrives_before_that_of_the_hedge(client, hedging: Running):
    home = home_of(client, hedging)
    other = next(name for name in hedging.site.nodes if name != home)
    before = len(hedging.site.nodes[other].cancels)
    prompt = script(first_s=1.5)  # on both nodes, so the first one is 0.2 s ahead
    response = run(client, hedging, {"prompt": prompt}, headers={"x-session-affinity": "s"})
    assert response.json()["result"]["response"] == TEXT
    assert hedging.site.usage_row(response.headers["cf-ai-req-id"])["node_id"] == home
    wait_until_blocking(lambda: len(hedging.site.nodes[other].cancels) == before + 1)


def test_hedge_answers_if_the_first_node_dies_meanwhile(client, hedging: Running):
    home = home_of(client, hedging)
    node = hedging.site.nodes[home]
    num_executes = hedging.site.num_executes
    responses = []
    body = {"prompt": script(first_s=2.0)}
    sender = threading.Thread(
        target=lambda: responses.append(run(client, hedging, body, headers={"x-session-affinity": "s"}))
    )
    sender.start()
    wait_until_blocking(lambda: hedging.site.num_executes == num_executes + 2)
    node.drop_connections()
    sender.join(60)
    assert responses[0].json()["result"]["response"] == TEXT
    assert hedging.site.usage_row(responses[0].headers["cf-ai-req-id"])["node_id"] != home
    wait_until_blocking(lambda: hedging.gateway.metric("hearth_nodes_alive") == 2)


def test_hedged_call_is_retried_when_its_first_node_crashes_after_the_hedge_was_cancelled(client, hedging: Running):
    num_executes = hedging.site.num_executes
    prompt = script(first_s=1.5, deaths=1, death_after=1)
    response = run(client, hedging, {"prompt": prompt}, headers={"x-session-affinity": "s"})
    assert response.json()["result"]["response"] == TEXT
    assert hedging.site.num_executes == num_executes + 3


def test_client_that_leaves_cancels_both_attempts(client, hedging: Running):
    num_executes, sites = hedging.site.num_executes, hedging.site.nodes.values()
    body = {"prompt": script(first_s=30.0)}
    url = f"{hedging.account_url}/ai/run/@cf/test/parrot"
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(url, json=body, headers=hedging.headers(), timeout=1.0)
    assert hedging.site.num_executes == num_executes + 2
    wait_until_blocking(lambda: all(node.num_open_calls == 0 for node in sites))


def test_call_of_a_lost_node_continues_in_another_pop(new_site: Callable[..., Site]):
    """The retry leaves the PoP of the lost node, whichever it is."""
    site = new_site()
    pops = {"n1": "lis", "n2": "lis", "n3": "fra", "n4": "fra"}
    for node_id, pop in pops.items():
        site.add_node(node_id, pop=pop)
    running = Running(site, site.gateway(HEARTH_POP="lis").start())
    wait_until_blocking(lambda: running.gateway.metric("hearth_nodes_alive") == len(pops))
    with httpx.Client(headers=running.headers(), timeout=60) as client:
        home = home_of(client, running)
        prompt = script(on=home, then_after=0, then="die")
        response = run(client, running, {"prompt": prompt}, headers={"x-session-affinity": "s"})
    assert response.json()["result"]["response"] == TEXT
    assert pops[site.usage_row(response.headers["cf-ai-req-id"])["node_id"]] != pops[home]
