"""Disconnecting clients, killed gateways, nodes and ranks on a whole platform: what the client and the ledger see."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import httpx
import msgspec
import pytest

from bench import figures
from engine.protocol.status import NodeStatus
from tests.platform import Platform, wait_for
from tests.ports import free_port

TRIES = 5
LONG_STREAM = {"prompt": "Tell me a long story.", "raw": True, "max_tokens": 1500, "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module")
def fragile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """A platform whose processes these tests kill."""
    running = Platform(tmp_path_factory.mktemp("fragile"), environ={"HEARTH_NODE_STEP_TIMEOUT_S": "2"}).start()
    yield running
    assert running.stop() == 0


def num_held_blocks(platform: Platform) -> int:
    replicas = [replica for node in live_statuses(platform) for replica in node.replicas if replica.num_blocks]
    return sum(r.num_blocks - r.num_free_blocks - r.num_cached_blocks for r in replicas)


def num_running(platform: Platform) -> int:
    return sum(
        replica.num_running + replica.num_waiting for node in live_statuses(platform) for replica in node.replicas
    )


def nodes_running(platform: Platform) -> list[str]:
    """Return the nodes that report a running sequence."""
    return [node.node_id for node in live_statuses(platform) if any(replica.num_running for replica in node.replicas)]


def events_of(response: httpx.Response) -> Iterator[str]:
    return (line.removeprefix("data: ") for line in response.iter_lines() if line)


def wait_until_recovered(platform: Platform) -> None:
    """Wait until the gateway has noticed the loss of a node and the node is ready again. The node restarts within a
    second, so the gateway may miss the loss.
    """
    with contextlib.suppress(AssertionError):
        wait_for("the node is missed", lambda: platform.metric("hearth_nodes_alive") == 1, 5)
    wait_for("the node is back", lambda: platform.metric("hearth_nodes_alive") == 2 and platform.num_hot == 2)


def node_that_serves(platform: Platform, affinity: str) -> str:
    """Return the node that serves a session, read from the usage row of a call."""
    headers = {"x-session-affinity": affinity}
    with platform.client() as client:
        response = client.post(
            f"{platform.ai_url()}/run/{platform.chat_model}", json={"prompt": "Hi", "max_tokens": 1}, headers=headers
        )
    assert response.status_code == 200, response.text
    (row,) = wait_for("the usage row", lambda: platform.usage_rows(response.headers["cf-ai-req-id"]))
    return str(row["node_id"])


def start_call(ask: Callable[[], None], is_running: Callable[[], bool]) -> threading.Thread:
    """Run `ask` in a thread, and return the thread once `is_running` returns True. A call that ended before is
    repeated.
    """
    while True:
        caller = threading.Thread(target=ask)
        caller.start()
        wait_for("the call runs or has ended", lambda caller=caller: is_running() or not caller.is_alive())
        if caller.is_alive():
            return caller


def retry_until_interrupted(
    platform: Platform, interrupt: Callable[[], tuple[str, list[str]]]
) -> tuple[str, list[str]]:
    """Repeat `interrupt` until it interrupted its stream. A fast machine may generate all 1,500 tokens before."""
    for _ in range(TRIES):
        request_id, remaining = interrupt()
        if "[DONE]" not in remaining:
            return request_id, remaining
        wait_until_recovered(platform)
    raise AssertionError(f"{TRIES} streams ended before they could be interrupted")


def test_disconnect_frees_blocks_and_is_metered(fragile: Platform):
    url = f"{fragile.ai_url()}/run/{fragile.chat_model}"

    def disconnect_during_call() -> bool:
        """Disconnect from a stream, and return True if the call had not finished."""
        with (
            fragile.client() as client,
            contextlib.ExitStack() as until_disconnected,
            client.stream("POST", url, json=LONG_STREAM) as response,
        ):
            request_id = response.headers["cf-ai-req-id"]
            next(events_of(response))
            until_disconnected.enter_context(suspended_ranks(fragile))
            holds_blocks = num_held_blocks(fragile) > 0
        wait_for("all blocks are free", lambda: num_held_blocks(fragile) == 0 and num_running(fragile) == 0)
        (row,) = wait_for("the usage row", lambda: fragile.usage_rows(request_id))
        assert row["completion_tokens"] > 0
        return holds_blocks and row["completion_tokens"] < 1500

    assert any(disconnect_during_call() for _ in range(TRIES))


@contextlib.contextmanager
def suspended_ranks(platform: Platform) -> Iterator[None]:
    """Suspend all ranks for the block, which must be shorter than HEARTH_NODE_STEP_TIMEOUT_S."""
    pids = [pid for node_id in platform.dev["pids"]["nodes"] for pid in platform.rank_pids(node_id)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


@pytest.mark.full
def test_disconnect_at_any_point_charges_generated_tokens_and_stops_the_work(fragile: Platform):
    """Ten streams, each abandoned after a random event. Computed and charged tokens differ by at most the step in
    progress.
    """
    url = f"{fragile.ai_url()}/run/{fragile.chat_model}"
    before, took_s, charged, num_abandoned = num_computed(fragile), [], 0, 0
    for number in range(10):
        # An event contains the tokens of 20 ms; a fast machine sends all 1,500 tokens in about fifty events.
        num_events = random.Random(number).randrange(1, 25)
        with fragile.client() as client, client.stream("POST", url, json=LONG_STREAM) as response:
            request_id = response.headers["cf-ai-req-id"]
            events = events_of(response)
            seen = list(itertools.islice(events, num_events))
        left_s = time.monotonic()
        wait_for("the node has stopped", lambda: not is_working(fragile))
        took_s.append(time.monotonic() - left_s)
        (row,) = wait_for("the usage row", partial(fragile.usage_rows, request_id))
        assert json.loads(seen[0])["response"], seen[0]
        assert row["completion_tokens"] >= len(seen)
        num_abandoned += row["completion_tokens"] < 1500
        charged += row["prompt_tokens"] - row["cached_tokens"] + row["completion_tokens"]
    assert num_abandoned >= 5, "most streams ended before the disconnect"
    computed = num_computed(fragile) - before
    assert -10 <= computed - charged <= 20, "more than the last token and the step in progress of each stream"
    figure = f"10 disconnects: work ended after {statistics.median(took_s) * 1000:.0f} ms in the median"
    figure += f" ({max(took_s) * 1000:.0f} at most), {charged} tokens charged, {computed} computed"
    figures.record("P9", figure, f"pytest {Path(__file__).name}")


def live_statuses(platform: Platform) -> list[NodeStatus]:
    """Return the status of every node, read from the node itself, because presence in Redis may be a second old."""
    found = []
    for known in platform.statuses():
        transport = httpx.HTTPTransport(uds=known.http_address.removeprefix("unix://"))
        with (
            contextlib.suppress(httpx.ConnectError, httpx.ReadError),
            httpx.Client(transport=transport, base_url="http://node") as client,
        ):
            found.append(msgspec.json.decode(client.get("/status").content, type=NodeStatus))
    return found


def num_computed(platform: Platform) -> int:
    """Return the number of tokens that the chat model has computed on all nodes."""
    replicas = [replica for node in live_statuses(platform) for replica in node.replicas]
    return sum(replica.num_computed_tokens for replica in replicas if replica.model == platform.chat_model)


def is_working(platform: Platform) -> bool:
    return any(replica.num_running for node in live_statuses(platform) for replica in node.replicas)


def test_disconnect_cancels_a_call_without_streaming(fragile: Platform):
    with fragile.client() as client, pytest.raises(httpx.ReadTimeout):
        client.post(
            f"{fragile.ai_url()}/run/{fragile.chat_model}",
            json=LONG_STREAM | {"stream": False},
            timeout=httpx.Timeout(30, read=0.5),
        )
    wait_for("all blocks are free", lambda: num_held_blocks(fragile) == 0 and num_running(fragile) == 0)


def test_node_killed_before_the_first_token_is_replaced(fragile: Platform):
    node_id = node_that_serves(fragile, "before")
    pid = fragile.node_pid(node_id)
    os.kill(pid, signal.SIGSTOP)
    responses: list[httpx.Response] = []

    def ask() -> None:
        with fragile.client() as client:
            url = f"{fragile.ai_url()}/run/{fragile.chat_model}"
            headers = {"x-session-affinity": "before"}
            responses.append(client.post(url, json={"prompt": "Hello"}, headers=headers))

    caller = threading.Thread(target=ask)
    caller.start()
    wait_for("the call is in flight", lambda: fragile.metric("hearth_calls_in_flight") == 1)
    os.kill(pid, signal.SIGKILL)
    caller.join()
    assert responses[0].status_code == 200, responses[0].text
    (row,) = wait_for("the usage row", lambda: fragile.usage_rows(responses[0].headers["cf-ai-req-id"]))
    assert row["node_id"] != node_id
    assert row["attempts"] == 2
    wait_until_recovered(fragile)


def test_node_killed_during_a_stream_ends_it_with_an_error_and_no_done(fragile: Platform):
    url = f"{fragile.ai_url()}/run/{fragile.chat_model}"

    def kill_its_node() -> tuple[str, list[str]]:
        """Kill the node of a running stream. Return the request id and the remaining events."""
        with fragile.client() as client, client.stream("POST", url, json=LONG_STREAM) as response:
            events = events_of(response)
            next(events)
            for busy in nodes_running(fragile):
                os.kill(fragile.node_pid(busy), signal.SIGKILL)
                killed.append(busy)
            return response.headers["cf-ai-req-id"], list(events)

    killed: list[str] = []
    request_id, remaining = retry_until_interrupted(fragile, kill_its_node)
    assert json.loads(remaining[-1])["errors"][0]["code"] == 3008
    (row,) = wait_for("the usage row", lambda: fragile.usage_rows(request_id))
    assert row["node_id"] == killed[-1]
    assert row["completion_tokens"] > 0
    wait_until_recovered(fragile)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_dead_or_hanging_rank_only_delays_a_call_without_streaming(fragile: Platform, number: signal.Signals):
    affinity = f"rank {number.name}".replace(" ", "-")
    node_id = node_that_serves(fragile, affinity)
    ranks = fragile.rank_pids(node_id)
    responses: list[httpx.Response] = []

    def ask() -> None:
        with fragile.client() as client:
            url = f"{fragile.ai_url()}/run/{fragile.chat_model}"
            # A separate input for each signal: an input that was in two crashes is quarantined.
            body = LONG_STREAM | {"stream": False, "max_tokens": 1500, "seed": int(number)}
            responses.append(client.post(url, json=body, headers={"x-session-affinity": affinity}))

    caller = start_call(ask, lambda: nodes_running(fragile) == [node_id])
    for rank in ranks:
        os.kill(rank, number)
    caller.join()
    assert responses[-1].status_code == 200, responses[-1].text
    (row,) = wait_for("the usage row", lambda: fragile.usage_rows(responses[-1].headers["cf-ai-req-id"]))
    assert (row["node_id"] != node_id, row["attempts"], row["completion_tokens"]) == (True, 2, 1500)
    wait_for("the rank is back", lambda: fragile.rank_pids(node_id) not in ([], ranks))
    wait_for("both are hot", lambda: fragile.num_hot == 2)


def test_rank_killed_during_a_stream_ends_it_with_an_error_and_no_done(fragile: Platform):
    url = f"{fragile.ai_url()}/run/{fragile.chat_model}"
    sticky = {"x-session-affinity": "mid-stream"}

    def kill_its_rank() -> tuple[str, list[str]]:
        """Kill the rank of a running stream. Return the request id and the remaining events."""
        ranks = fragile.rank_pids(node_that_serves(fragile, "mid-stream"))
        with fragile.client() as client, client.stream("POST", url, json=LONG_STREAM, headers=sticky) as response:
            events = events_of(response)
            next(events)
            for rank in ranks:
                os.kill(rank, signal.SIGKILL)
            return response.headers["cf-ai-req-id"], list(events)

    _, remaining = retry_until_interrupted(fragile, kill_its_rank)
    assert json.loads(remaining[-1])["errors"][0]["code"] == 3008
    wait_for("both are hot", lambda: fragile.num_hot == 2)


def test_killed_gateway_is_restarted_and_loses_no_usage(fragile: Platform):
    with fragile.client() as client:
        url = f"{fragile.ai_url()}/run/{fragile.chat_model}"
        responses_before = [client.post(url, json={"prompt": "Hello", "max_tokens": 2}) for _ in range(5)]
    assert [response.status_code for response in responses_before] == [200] * 5, [a.text for a in responses_before]
    os.kill(fragile.dev["pids"]["gateway"], signal.SIGKILL)

    def is_answering() -> bool:
        try:
            with fragile.client() as client:
                return client.post(url, json={"prompt": "Hello", "max_tokens": 2}).status_code == 200
        except httpx.TransportError:
            return False

    wait_for("the gateway responds again", is_answering)
    for response in responses_before:
        request_id = response.headers["cf-ai-req-id"]
        assert len(wait_for("the usage row", lambda wanted=request_id: fragile.usage_rows(wanted))) == 1


def test_second_start_fails_without_side_effects(fragile: Platform):
    second = fragile.run_up("--port", str(free_port()))
    assert second.returncode == 1
    assert str(fragile.dev["pid"]) in second.stderr
    assert httpx.get(f"http://127.0.0.1:{fragile.port}/readyz").status_code == 200
