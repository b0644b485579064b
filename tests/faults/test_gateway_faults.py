"""Nodes that crash, hang or send garbage, and clients that disconnect or do not read: the responses and the usage
entries.
"""

import json
import socket
import threading
import time
from collections.abc import Callable
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import pytest

from bench import figures
from tests.fakes.node import WORDS, FakeNode
from tests.gateway.inference.test_text_generation import events_of, heard_when_let_go_on, run, script
from tests.gateway.process import PARROT
from tests.gateway.site import Running, Site
from tests.waiting import wait_until_blocking

TEXT = "".join(WORDS)


@pytest.fixture(scope="module")
def fragile(new_site: Callable[..., Site]) -> Running:
    """A site whose nodes these tests break."""
    site = new_site()
    site.add_node("n1")
    site.add_node("n2")
    gateway = site.gateway(
        HEARTH_CALL_TIMEOUT_S="3", HEARTH_STALL_TIMEOUT_S="1.5", HEARTH_FIRST_EVENT_TIMEOUT_S="1.5",
        HEARTH_CLIENT_STALL_TIMEOUT_S="0.4",
    )  # fmt: skip
    return Running(site, gateway.start())


@pytest.fixture
def client(fragile: Running):
    wait_until_blocking(lambda: fragile.gateway.metric("hearth_nodes_alive") == 2)
    with httpx.Client(headers=fragile.headers(), timeout=60) as client:
        yield client


def serving_node(client: httpx.Client, running: Running, session: str) -> str:
    """Return the node that serves a session."""
    response = run(client, running, {"prompt": "x"}, headers={"x-session-affinity": session})
    return str(running.site.usage_row(response.headers["cf-ai-req-id"])["node_id"])


def other_than(running: Running, node_id: str) -> str:
    return next(other for other in running.site.nodes if other != node_id)


def is_quiet(running: Running) -> bool:
    return all(node.num_open_calls == 0 for node in running.site.nodes.values())


def error_in(event: str) -> int:
    parsed = json.loads(event)
    assert parsed["error"]["code"] == parsed["errors"][0]["code"]
    return int(parsed["error"]["code"])


@pytest.mark.parametrize("fault", ["die", "garbage"])
@pytest.mark.parametrize("is_stream", [False, True])
def test_node_lost_before_the_first_event_is_replaced(client, fragile: Running, fault: str, is_stream: bool):
    home = serving_node(client, fragile, "before")
    prompt = script(on=home, then_after=0, then=fault)
    response = run(client, fragile, {"prompt": prompt, "stream": is_stream}, headers={"x-session-affinity": "before"})
    if is_stream:
        assert events_of(response)[-1] == "[DONE]"
    else:
        assert response.json()["result"]["response"] == TEXT
    row = fragile.site.usage_row(response.headers["cf-ai-req-id"])
    assert (row["attempts"], row["node_id"], row["status"]) == (2, other_than(fragile, home), "stop")
    assert row["completion_tokens"] == len(WORDS)


def test_call_without_streaming_is_repeated_if_its_node_dies(client, fragile: Running):
    home = serving_node(client, fragile, "middle")
    prompt = script(on=home, then_after=3)
    response = run(client, fragile, {"prompt": prompt}, headers={"x-session-affinity": "middle"})
    assert response.json()["result"]["response"] == TEXT
    row = fragile.site.usage_row(response.headers["cf-ai-req-id"])
    assert (row["attempts"], row["completion_tokens"]) == (2, len(WORDS))


@pytest.mark.parametrize("fault", ["die", "garbage"])
def test_node_lost_during_a_stream_ends_it_with_an_error_and_no_done(client, fragile: Running, fault: str):
    prompt = script(held_after=1, then_after=3, then=fault)
    request_id, (*events, last) = heard_when_let_go_on(client, fragile, {"prompt": prompt}, f"run/{PARROT}")
    assert "".join(json.loads(event)["response"] for event in events) == "".join(WORDS[:3])
    assert error_in(last) == 3008
    row = fragile.site.usage_row(request_id)
    assert (row["attempts"], row["completion_tokens"]) == (1, 3)


def test_failure_during_a_stream_is_the_last_event(client, fragile: Running):
    body = {"prompt": script(held_after=1, end="internal")}
    request_id, heard = heard_when_let_go_on(client, fragile, body, f"run/{PARROT}")
    assert error_in(heard[-1]) == 3008
    assert fragile.site.usage_row(request_id)["status"] == "internal"


def test_retryable_failure_is_retried_on_the_other_node(client, fragile: Running):
    home = serving_node(client, fragile, "retry")
    prompt = script(on=home, tokens=[], end="out_of_capacity", is_retryable=True)
    response = run(client, fragile, {"prompt": prompt}, headers={"x-session-affinity": "retry"})
    assert response.json()["result"]["response"] == TEXT


def test_call_fails_if_both_nodes_fail(client, fragile: Running):
    before = fragile.site.num_executes
    response = run(client, fragile, {"prompt": script(tokens=[], end="draining", is_retryable=True)})
    assert (response.status_code, response.json()["errors"][0]["code"]) == (429, 3040)
    assert fragile.site.num_executes == before + 2


@pytest.mark.parametrize("is_stream", [False, True])
def test_input_that_crashes_processes_is_tried_only_twice(client, fragile: Running, is_stream: bool):
    before = fragile.site.num_executes
    body = {"prompt": script(deaths=9, message=f"poison {is_stream}"), "stream": is_stream}
    for _ in range(3):
        refused = run(client, fragile, body)
        assert (refused.status_code, refused.json()["errors"][0]["code"]) == (400, 5004)
        assert refused.headers["x-should-retry"] == "false"
        assert fragile.site.num_executes == before + 2
    last = last_execute(fragile, f"poison {is_stream}", num_crashes=1)
    assert last is not None
    assert last.tokens_before_crash == 7
    assert run(client, fragile, body | {"prompt": script(message="another")}).status_code == 200


def test_innocent_call_gets_a_third_attempt_after_two_crashes(client, fragile: Running):
    """The node reports that the first crash was not caused by this call."""
    before = fragile.site.num_executes
    response = run(client, fragile, {"prompt": script(tokens=[], end="internal", is_retryable=True, one_death=True)})
    assert (response.status_code, response.json()["errors"][0]["code"]) == (408, 3008)
    assert fragile.site.num_executes == before + 3


def test_node_without_a_first_event_is_replaced(client, fragile: Running):
    home = serving_node(client, fragile, "late")
    prompt = script(on=home, first_s=30)
    response = run(client, fragile, {"prompt": prompt}, headers={"x-session-affinity": "late"})
    assert response.json()["result"]["response"] == TEXT
    assert response.headers["cf-ai-req-id"] in fragile.site.nodes[home].cancels
    wait_until_blocking(lambda: is_quiet(fragile))


def test_stalled_stream_ends_with_a_timeout(client, fragile: Running):
    started_s = time.monotonic()
    response = run(client, fragile, {"prompt": script(then_after=2, then="hang"), "stream": True})
    took_s = time.monotonic() - started_s
    assert error_in(events_of(response)[-1]) == 3007
    assert took_s < 10
    figure = f"stalled stream ended after {took_s:.1f} s with a stall timeout of 1.5 s"
    figures.record("P3", figure, f"pytest {Path(__file__).name}")
    row = fragile.site.usage_row(response.headers["cf-ai-req-id"])
    assert (row["status"], row["completion_tokens"]) == ("timeout", 2)
    wait_until_blocking(lambda: is_quiet(fragile))


def test_call_timeout_is_not_retryable(client, fragile: Running):
    tokens = ["x"] * 100
    response = run(client, fragile, {"prompt": script(tokens=tokens, gap_s=0.1)})
    assert (response.status_code, response.json()["errors"][0]["code"]) == (408, 3007)
    assert response.headers["x-should-retry"] == "false"
    assert fragile.site.usage_row(response.headers["cf-ai-req-id"])["completion_tokens"] >= 5
    wait_until_blocking(lambda: is_quiet(fragile))


@contextmanager
def open_call(running: Running, body: dict):
    """Return a connection on which a call was sent and no response has been read."""
    payload = json.dumps(body).encode()
    path = httpx.URL(f"{running.account_url}/ai/run/{PARROT}").path
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(payload)}\r\n"
    head += f"Authorization: {running.headers()['Authorization']}\r\n\r\n"
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", running.gateway.port))
    with closing(connection):
        connection.sendall(head.encode() + payload)
        yield connection


def last_execute(running: Running, marker: str, num_crashes: int = 0):
    everything = [execute for node in running.site.nodes.values() for execute in node.executes]
    found = [e for e in everything if marker in (e.task.prompt or "") and e.num_crashes == num_crashes]
    return found[-1] if found else None


@pytest.mark.parametrize("is_stream", [False, True])
def test_disconnect_stops_the_work_and_charges_generated_tokens(client, fragile: Running, is_stream: bool):
    marker = f"disconnects-{is_stream}"
    body = {"prompt": script(tokens=["x"] * 200, gap_s=0.02, message=marker), "stream": is_stream}
    with open_call(fragile, body):
        execute = wait_until_blocking(lambda: last_execute(fragile, marker))
        wait_until_blocking(lambda: not is_quiet(fragile))
    wait_until_blocking(lambda: is_quiet(fragile))
    assert execute.request_id in [cancelled for node in fragile.site.nodes.values() for cancelled in node.cancels]
    row = fragile.site.usage_row(execute.request_id)
    assert row["status"] == "client_left"
    assert row["completion_tokens"] < 200


def test_client_that_does_not_read_is_disconnected(client, fragile: Running):
    prompt = script(tokens=["x"], repeat=2000, pad=20_000, gap_s=0.0001, message="slow reader")
    body = {"prompt": prompt, "stream": True, "max_tokens": 2000}
    with open_call(fragile, body):
        execute = wait_until_blocking(lambda: last_execute(fragile, "slow reader"))
        row = wait_until_blocking(lambda: fragile.site.usage_rows(execute.request_id))[0]
        assert 0 < row["completion_tokens"] < 2000
        wait_until_blocking(lambda: is_quiet(fragile))


def test_session_moves_to_a_new_node_if_its_node_is_lost(new_site: Callable[..., Site]):
    site = new_site()
    site.add_node("n1")
    running = Running(site, site.gateway().start())
    with httpx.Client(headers=running.headers(), timeout=60) as client:
        assert run(client, running, {"prompt": "x"}).status_code == 200
        site.nodes["n1"].die()
        wait_until_blocking(lambda: not running.gateway.is_ready())
        refused = run(client, running, {"prompt": "x"})
        assert (refused.status_code, refused.json()["errors"][0]["code"]) == (429, 3040)
        assert httpx.get(f"{running.gateway.url}/healthz").status_code == 200
        site.add_node("n2")
        wait_until_blocking(running.gateway.is_ready)
        assert run(client, running, {"prompt": "x"}).status_code == 200


def test_concurrent_calls_get_their_own_responses(client, fragile: Running):
    responses: dict[int, str] = {}

    def ask(i: int) -> None:
        with httpx.Client(headers=fragile.headers(), timeout=60) as own:
            prompt = script(tokens=[f"{i}-", f"{i}"], first_s=0.01)
            responses[i] = run(own, fragile, {"prompt": prompt}).json()["result"]["response"]

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert responses == {i: f"{i}-{i}" for i in range(24)}


def test_call_is_retried_on_the_only_node_after_a_model_crash(new_site: Callable[..., Site]):
    site = new_site()
    site.add_node("n1")
    running = Running(site, site.gateway().start())
    with httpx.Client(headers=running.headers(), timeout=60) as client:
        response = run(client, running, {"prompt": script(deaths=1)})
        assert response.json()["result"]["response"] == TEXT
        assert site.usage_row(response.headers["cf-ai-req-id"])["attempts"] == 2
        failed = run(client, running, {"prompt": script(tokens=[], end="internal", is_retryable=True)})
        assert (failed.status_code, failed.json()["errors"][0]["code"]) == (408, 3008), (
            "only a crash is retried on the same node"
        )
        assert site.num_executes == 3


def test_nearby_nodes_are_preferred(new_site: Callable[..., Site]):
    site = new_site()
    nodes: list[FakeNode] = [
        site.add_node("near", pop="lis"),
        site.add_node("far", pop="syd"),
    ]  # far even on a busy machine
    running = Running(site, site.gateway(HEARTH_POP="lis").start())
    wait_until_blocking(lambda: running.gateway.metric("hearth_nodes_alive") == 2)
    with httpx.Client(headers=running.headers(), timeout=60) as client:
        for i in range(8):
            assert run(client, running, {"prompt": f"{i}"}).headers["cf-ray"].endswith("-LIS")
    assert [len(node.executes) for node in nodes] == [8, 0]


def test_no_internal_error_was_logged(fragile: Running):
    assert fragile.gateway.metric("hearth_internal_errors_total") == 0
    assert not [line for line in fragile.gateway.log_lines() if line["level"] in ("error", "critical")]


def test_new_node_receives_the_call_of_a_dead_node(new_site: Callable[..., Site]):
    site = new_site()
    first = site.add_node("n1")
    running = Running(site, site.gateway().start())
    responses: list[httpx.Response] = []

    def ask() -> None:
        with httpx.Client(headers=running.headers(), timeout=60) as client:
            responses.append(run(client, running, {"prompt": script(on="n1", first_s=30)}))

    wait_until_blocking(lambda: running.gateway.metric("hearth_nodes_alive") == 1)
    caller = threading.Thread(target=ask)
    caller.start()
    wait_until_blocking(lambda: first.num_open_calls == 1)
    site.add_node("n2")
    wait_until_blocking(lambda: running.gateway.metric("hearth_nodes_alive") == 2)
    first.stop()
    caller.join()
    assert responses[0].json()["result"]["response"] == TEXT
    assert site.usage_row(responses[0].headers["cf-ai-req-id"])["node_id"] == "n2"
