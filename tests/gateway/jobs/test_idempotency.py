"""Idempotency keys: one execution, and the same response for repeated requests at every gateway, also after a kill."""

from __future__ import annotations

import http.client
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench import figures
from tests.gateway.inference.test_text_generation import events_of, run, script
from tests.gateway.jobs.test_batches import QUEUED, polled
from tests.gateway.process import CHATTY, PARROT, VECTORS
from tests.gateway.site import Running, Site
from tests.waiting import wait_until_blocking

LEASE_S = 4


def keyed(client: httpx.Client, running: Running, key: str, body: dict, **options: Any) -> httpx.Response:
    return run(client, running, body, headers={"idempotency-key": key}, **options)


def executes_of(running: Running, marker: str) -> int:
    """Count the executions of a prompt on all nodes."""
    return sum(marker in repr(execute.task) for node in running.site.nodes.values() for execute in node.executes)


@pytest.fixture
def two(of_one_site: tuple[Running, Running]) -> tuple[Running, Running]:
    """Two gateways of one site. A gateway that a test has killed is restarted."""
    for running in of_one_site:
        if running.gateway.process is not None and running.gateway.process.poll() is not None:
            running.gateway.start()
    return of_one_site


@pytest.fixture(scope="module")
def of_one_site(new_site: Callable[..., Site]) -> tuple[Running, Running]:
    site = new_site()
    site.add_node("n1")
    lease = {"HEARTH_BATCH_LEASE_S": str(LEASE_S)}
    return Running(site, site.gateway(**lease).start()), Running(site, site.gateway(**lease).start())


@pytest.mark.parametrize("body", [{"prompt": "k whole"}, {"prompt": "k stream", "stream": True}])
def test_repeated_request_with_a_key_gets_identical_bytes(client: httpx.Client, running: Running, body: dict):
    key = f"again-{'stream' in body}"
    first, again = keyed(client, running, key, body), keyed(client, running, key, body)
    assert first.status_code == again.status_code == 200
    assert first.content == again.content
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    for name in ("content-type", "cf-ai-req-id", "cf-ai-neurons"):
        assert first.headers.get(name) == again.headers.get(name)
    assert first.headers["x-hearth-request-id"] != again.headers["x-hearth-request-id"]
    assert executes_of(running, body["prompt"]) == 1
    assert running.site.usage_row(first.headers["cf-ai-req-id"])["status"] == "stop"
    if "stream" in body:
        assert events_of(again)[-1] == "[DONE]"


def test_different_request_with_the_same_key_is_rejected(client: httpx.Client, running: Running):
    keyed(client, running, "other", {"prompt": "x"})
    for model, body, params in (
        (PARROT, {"prompt": "y"}, {}),
        (CHATTY, {"prompt": "x"}, {}),
        (PARROT, {"prompt": "x"}, QUEUED),
    ):
        response = run(client, running, body, model, params=params, headers={"idempotency-key": "other"})
        assert (response.status_code, response.json()["errors"][0]["code"]) == (409, 11003)
        assert response.headers["x-should-retry"] == "false"


def test_idempotency_keys_of_accounts_are_independent(client: httpx.Client, running: Running):
    first = keyed(client, running, "mine", {"prompt": "x"})
    url = f"{running.gateway.base_url}/accounts/{running.tenants.other_account_id}/ai/run/{PARROT}"
    headers = running.headers("other") | {"idempotency-key": "mine"}
    other = client.post(url, json={"prompt": "x"}, headers=headers)
    assert other.status_code == 200
    assert other.headers["cf-ai-req-id"] != first.headers["cf-ai-req-id"]


def test_refused_request_releases_its_key(client: httpx.Client, running: Running):
    assert keyed(client, running, "free", {"prompt": "x", "temperature": 9}).status_code == 400
    failing = {"prompt": script(end="out_of_capacity")}
    assert keyed(client, running, "free", failing).status_code == 429
    assert keyed(client, running, "free", {"prompt": "x"}).status_code == 200


def test_broken_stream_is_not_stored(client: httpx.Client, running: Running, relinks: Callable[[], None]):
    body = {"prompt": script(then_after=2, then="die", tokens=["x"] * 4), "stream": True}
    first = keyed(client, running, "breaks", body)
    relinks()
    again = keyed(client, running, "breaks", body)
    for response in (first, again):
        assert "error" in events_of(response)[-1]
        assert "idempotent-replayed" not in response.headers
    assert first.headers["cf-ai-req-id"] != again.headers["cf-ai-req-id"]


def test_batch_with_an_idempotency_key_is_queued_once(client: httpx.Client, running: Running):
    body = {"requests": [{"prompt": "queued once"}]}
    first, again = (keyed(client, running, "batch", body, params=QUEUED) for _ in range(2))
    assert first.content == again.content
    batch_id = first.json()["result"]["request_id"]
    assert len(polled(client, running, batch_id)["responses"]) == 1
    assert executes_of(running, "queued once") == 1


def test_batch_polls_ignore_idempotency_keys(client: httpx.Client, running: Running):
    body = {"requests": [{"text": "x"}]}
    queued = run(client, running, body, VECTORS, params=QUEUED).json()["result"]["request_id"]
    polled(client, running, queued, VECTORS)
    response = run(client, running, {"request_id": queued}, VECTORS, headers={"idempotency-key": "poll"})
    assert "responses" in response.json()["result"]
    assert keyed(client, running, "poll", {"prompt": "x"}).status_code == 200


def test_one_of_many_concurrent_requests_with_a_key_runs(two: tuple[Running, Running]):
    body = {"prompt": script(tokens=["once ", "only"], gap_s=0.3)}
    responses: list[httpx.Response] = []

    def ask(number: int) -> None:
        with httpx.Client(headers=two[number % 2].headers(), timeout=30) as client:
            responses.append(keyed(client, two[number % 2], "parallel", body))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    statuses = Counter(response.status_code for response in responses)
    assert set(statuses) <= {200, 409}
    assert len({response.content for response in responses if response.status_code == 200}) == 1
    for response in responses:
        if response.status_code == 409:
            assert (response.json()["errors"][0]["code"], response.headers["retry-after"]) == (11003, "1")
    assert executes_of(two[0], "once ") == 1
    first = next(response for response in responses if response.status_code == 200)
    assert two[0].site.usage_row(first.headers["cf-ai-req-id"])["status"] == "stop"
    figure = "50 posts at once through 2 gateways: 1 execution, 1 row, the same bytes"
    figures.record("P17", figure, f"pytest {Path(__file__).name}")


@pytest.mark.parametrize("is_stream", [False, True])
def test_retry_after_a_disconnect_returns_the_stored_response(two: tuple[Running, Running], is_stream: bool):
    """A call with a key continues when its client disconnects."""
    marker = f"gone-{is_stream} "
    body = {"prompt": script(tokens=[marker, "a while"] * 5, gap_s=0.1), "stream": is_stream}
    key = f"comes back {is_stream}"
    connection = http.client.HTTPConnection("127.0.0.1", two[0].gateway.port)
    path = f"/client/v4/accounts/{two[0].tenants.account_id}/ai/run/{PARROT}"
    content = httpx.Request("POST", "http://x", json=body).content  # the bytes that httpx sends
    connection.request("POST", path, content, two[0].headers() | {"idempotency-key": key})
    wait_until_blocking(lambda: executes_of(two[0], marker) == 1)
    connection.close()
    with httpx.Client(headers=two[1].headers(), timeout=60) as client:
        response = wait_until_blocking(
            lambda: found if (found := keyed(client, two[1], key, body)).status_code == 200 else None
        )
    assert response.headers["idempotent-replayed"] == "true"
    assert marker in response.text
    assert executes_of(two[0], marker) == 1
    assert not two[0].site.nodes["n1"].cancels


def test_idempotency_key_of_a_killed_gateway_is_taken_over(two: tuple[Running, Running]):
    killed, other = two
    body = {"prompt": script(tokens=["killed ", "mid-way"], gap_s=1.0)}
    began_s = time.monotonic()
    with httpx.Client(headers=killed.headers(), timeout=60) as client:
        thread = threading.Thread(target=lambda: _ignoring_errors(client, killed, body))
        thread.start()
        wait_until_blocking(lambda: executes_of(killed, "killed ") == 1)
        assert killed.gateway.process is not None
        killed.gateway.process.kill()
        thread.join()
    with httpx.Client(headers=other.headers(), timeout=60) as client:
        is_held = keyed(client, other, "killed", body).status_code == 409
        assert is_held or time.monotonic() - began_s > LEASE_S, "its lease counts until it ends"
        response = wait_until_blocking(
            lambda: found if (found := keyed(client, other, "killed", body)).status_code == 200 else None
        )
        assert keyed(client, other, "killed", body).content == response.content
    first, second = (e for e in other.site.nodes["n1"].executes if "killed " in repr(e.task))
    assert first.request_id == second.request_id == response.headers["cf-ai-req-id"]
    assert other.site.usage_row(response.headers["cf-ai-req-id"])["status"] == "stop"


def _ignoring_errors(client: httpx.Client, running: Running, body: dict) -> None:
    try:
        keyed(client, running, "killed", body)
    except httpx.TransportError:
        return


def test_stored_response_is_encrypted_in_the_stores(client: httpx.Client, running: Running):
    marker = "kept-marker-51b2"
    body = {"prompt": script(tokens=[marker])}
    assert marker in keyed(client, running, marker, body).text
    file = running.site.database_url.removeprefix("sqlite://")
    for path in (Path(file), Path(file + "-wal")):
        assert marker.encode() not in path.read_bytes()
    assert marker not in running.gateway.log_text()
