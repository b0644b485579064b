"""Faults of the network between a gateway and a node: partition, silent loss, truncated and corrupted messages,
half-closed and slow connections.

A real gateway and two fake nodes, one of them behind the fault proxy. Calls that have not started go to the other node,
started streams end with one error, and the node is used again once it is reachable.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.fakes.node import WORDS
from tests.faults.conftest import errors_in
from tests.faults.proxy import FaultProxy
from tests.gateway.inference.test_text_generation import events_of, run, script
from tests.gateway.process import fake_node
from tests.gateway.site import Running, Site
from tests.waiting import wait_until_blocking

pytestmark = pytest.mark.full

TEXT = "".join(WORDS)
LONG = script(tokens=["x"] * 40, gap_s=0.05)


@dataclass
class DistantNode:
    """A gateway with a near node and a node behind a proxy, and a session that is served by the latter."""

    running: Running
    proxy: FaultProxy
    client: httpx.Client
    session: str = ""

    def ask(self, **body: object) -> httpx.Response:
        body.setdefault("prompt", "x")
        return run(self.client, self.running, body, headers={"x-session-affinity": self.session})

    def row(self, response: httpx.Response) -> dict:
        return self.running.site.usage_row(response.headers["cf-ai-req-id"])

    def is_served_by_far(self) -> bool:
        """Return True if the session's calls go through the proxy."""
        return self.row(self.ask())["node_id"] == "far"

    def find_session(self) -> None:
        for number in range(100):
            self.session = f"session-{number}"
            if self.is_served_by_far():
                return
        raise AssertionError("none of 100 sessions is served by the far node")


@pytest.fixture(scope="module")
def far_site(new_site: Callable[..., Site]) -> Iterator[DistantNode]:
    site = new_site()
    site.add_node("near")
    node = fake_node("far", site.folder, site.redis.url)
    with FaultProxy(Path(node.address.removeprefix("unix://"))) as proxy, httpx.Client(timeout=30) as client:
        node.announced = f"tcp://127.0.0.1:{proxy.port}"
        site.nodes["far"] = node.start()
        gateway = site.gateway(HEARTH_FIRST_EVENT_TIMEOUT_S="1", HEARTH_STALL_TIMEOUT_S="1", HEARTH_CALL_TIMEOUT_S="10")
        running = Running(site, gateway.start())
        client.headers.update(running.headers())
        far = DistantNode(running, proxy, client)
        wait_until_blocking(lambda: gateway.metric("hearth_nodes_alive") == 2)
        far.find_session()
        yield far
        assert errors_in(gateway) == ""
        assert gateway.metric("hearth_internal_errors_total") == 0


@pytest.fixture
def far(far_site: DistantNode) -> DistantNode:
    """A setup without faults, whose session is served by the node behind the proxy."""
    far_site.proxy.heal()
    wait_until_blocking(far_site.is_served_by_far, interval_s=0.1)
    return far_site


@pytest.mark.parametrize("fault", ["partition", "drop_silently", "reset", "half_close"])
def test_lost_node_is_not_tried_by_later_calls(far: DistantNode, fault: str):
    if fault == "reset":
        far.proxy.refuses = True
    getattr(far.proxy, fault)()
    response = far.ask()
    assert response.status_code == 200, response.text
    assert response.json()["result"]["response"] == TEXT
    if fault in ("partition", "drop_silently"):
        began_s = time.monotonic()
        wait_until_blocking(lambda: far.row(far.ask())["attempts"] == 1, interval_s=0.05)
        assert time.monotonic() - began_s <= 10, "later calls tried the lost node for too long"
    far.proxy.heal()
    far.proxy.reset()
    wait_until_blocking(far.is_served_by_far, interval_s=0.1)


@pytest.mark.parametrize("fault", ["partition", "drop_silently", "reset"])
def test_started_stream_ends_with_one_error(far: DistantNode, fault: str):
    with far.client.stream(
        "POST",
        f"{far.running.account_url}/ai/run/@cf/test/parrot",
        json={"prompt": LONG, "stream": True},
        headers={"x-session-affinity": far.session},
    ) as response:
        text = ""
        for piece in response.iter_text():
            if not text:
                getattr(far.proxy, fault)()
                began_s = time.monotonic()
            text += piece
    assert time.monotonic() - began_s < 10
    frames = [frame.removeprefix("data: ") for frame in text.split("\n\n") if frame]
    errors = [json.loads(frame)["error"]["code"] for frame in frames if "error" in json.loads(frame)]
    assert errors == [json.loads(frames[-1])["error"]["code"]]
    assert errors[0] in (3007, 3008)
    assert "[DONE]" not in text


@pytest.mark.parametrize("num_bytes", [1, 3, 40, 90])
def test_call_with_a_truncated_message_is_retried_on_the_other_node(far: DistantNode, num_bytes: int):
    far.proxy.to_client.cut_after = num_bytes
    response = far.ask()
    assert response.status_code == 200, response.text
    assert response.json()["result"]["response"] == TEXT
    assert far.row(response)["completion_tokens"] == len(WORDS)


@pytest.mark.parametrize("flip_after", [0, 2, 5, 9, 30, 60])
def test_invalid_messages_do_not_crash_the_gateway(far: DistantNode, flip_after: int):
    far.proxy.to_client.flip_after = flip_after
    response = far.ask()
    assert response.status_code in (200, 408), response.text
    if response.status_code == 408:
        assert response.json()["errors"][0]["code"] == 3008
    assert far.running.gateway.is_ready()
    assert far.ask().status_code == 200


def test_slow_connection_only_delays_the_response(far: DistantNode):
    far.proxy.to_client.piece_bytes = far.proxy.to_server.piece_bytes = 1
    response = far.ask()
    assert (response.json()["result"]["response"], far.row(response)["attempts"]) == (TEXT, 1)
    far.proxy.heal()
    far.proxy.to_client.bytes_per_s = 4000
    stream = far.ask(stream=True)
    *events, _usage, done = events_of(stream)
    assert "".join(json.loads(event).get("response", "") for event in events) == TEXT
    assert done == "[DONE]"
    far.proxy.heal()
    far.proxy.delay(0.1, 0.05)
    response = far.ask()
    assert (response.json()["result"]["response"], far.row(response)["attempts"]) == (TEXT, 1)
