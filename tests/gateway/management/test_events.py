"""The event stream: readers with permission receive changed nodes and finished calls of all gateways."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from gateway.live.event_hub import MAX_STREAMS_PER_CALLER, MAX_UNREAD_FRAMES, EventHub, TooManyStreams
from storage.database import Database
from tenants import accounts
from tenants.credentials import api_tokens
from tests.gateway.browser_session import session_headers
from tests.gateway.process import PARROT, PEPPER
from tests.gateway.site import ACCOUNT_READ, Running, Site
from tests.waiting import PATIENCE_S, wait_until, wait_until_blocking


@pytest.fixture(scope="module")
def running(new_site: Callable[..., Site]) -> Running:
    site = new_site()
    site.add_node("n1")
    return Running(site, site.gateway(HEARTH_CLIENT_STALL_TIMEOUT_S="1").start())


@pytest.fixture(scope="module")
def operator(running: Running) -> dict[str, str]:
    return session_headers(running, "administrator", email="op@example.org")


class Follower:
    """A client of the event stream, in its own thread."""

    def __init__(self, url: str, headers: dict[str, str], **query: str) -> None:
        self.events: list[tuple[str, Any]] = []
        self.is_open = threading.Event()
        self.has_ended = threading.Event()
        self._client = httpx.Client(headers=headers, timeout=PATIENCE_S)
        self._request = self._client.build_request("GET", url, params=query)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        assert self.is_open.wait(PATIENCE_S)

    def _read(self) -> None:
        with contextlib.suppress(httpx.HTTPError, httpx.StreamError):
            response = self._client.send(self._request, stream=True)
            assert response.status_code == 200, response.read()
            assert response.headers["content-type"] == "text/event-stream"
            topic = ""
            for line in response.iter_lines():
                name, _, value = line.partition(": ")
                if line == ": open":
                    self.is_open.set()
                elif name == "event":
                    topic = value
                elif name == "data":
                    self.events.append((topic, json.loads(value)))
        self.has_ended.set()

    def of(self, topic: str) -> list[Any]:
        """Return the rows of all events of a topic."""
        return [row for name, rows in list(self.events) if name == topic for row in rows]

    def close(self) -> None:
        self._client.close()


@pytest.fixture
def follow(running: Running) -> Iterator[Callable[..., Follower]]:
    made: list[Follower] = []

    def start(headers: dict[str, str], **query: str) -> Follower:
        made.append(Follower(f"{running.gateway.base_url}/events", headers, **query))
        return made[-1]

    yield start
    for follower in made:
        follower.close()


def run(running: Running, name: str = "good", base_url: str = "", account_id: str = "") -> str:
    """Run a call and return its request id."""
    url = f"{base_url or running.gateway.base_url}/accounts/{account_id or running.tenants.account_id}/ai/run/{PARROT}"
    response = httpx.post(url, json={"prompt": "secret words"}, headers=running.headers(name), timeout=60)
    return response.raise_for_status().headers["x-hearth-request-id"]


def wait_for_calls(running: Running, follower: Follower, **call: str) -> dict[str, Any]:
    """Run calls until one of them is an event: the first ones may precede the subscription. Return its row."""

    def found() -> dict[str, Any] | None:
        request_id = run(running, **call)
        deadline_s = time.monotonic() + 2
        while time.monotonic() < deadline_s:
            for row in follower.of("calls"):
                if row["request_id"] == request_id:
                    return row
            time.sleep(0.02)
        return None

    row = wait_until_blocking(found)
    assert row is not None
    return row


def test_changed_nodes_are_events_for_platform_roles(running: Running, operator: dict[str, str], follow):
    follower = follow(operator, topics="nodes")
    node = running.site.nodes["n1"]
    node.queued_tokens = 4321
    node.publish()
    wait_until_blocking(lambda: any(each["queued_tokens"] >= 4321 for each in follower.of("nodes")))
    node.queued_tokens = 0
    node.publish()
    assert {each["node_id"] for each in follower.of("nodes")} == {"n1"}


@pytest.mark.full
def test_finished_calls_of_every_gateway_are_events_without_content(running: Running, operator, follow):
    follower = follow(operator, topics="calls")
    row = wait_for_calls(running, follower)
    assert (row["model"], row["status"], row["account_id"]) == (PARROT, "stop", running.tenants.account_id)
    with running.beside() as other:
        there = wait_for_calls(running, follower, base_url=other.base_url)
        assert there["node_id"] == "n1"
    assert "secret words" not in json.dumps(follower.events)


def test_account_sees_only_its_own_calls(running: Running, follow):
    tenants = running.tenants
    follower = follow(running.headers("keeper"), account_id=tenants.account_id)
    everything = follow(session_headers(running, "viewer", email="all@example.org"), topics="calls")
    wait_for_calls(running, everything, name="other", account_id=tenants.other_account_id)
    wait_for_calls(running, follower)
    assert {row["account_id"] for row in follower.of("calls")} == {tenants.account_id}
    assert tenants.other_account_id in {row["account_id"] for row in everything.of("calls")}
    assert not follower.of("nodes")


@pytest.mark.parametrize(
    ("name", "query", "status"),
    [
        ("keeper", {}, 403),
        ("keeper", {"account_id": "other"}, 403),
        ("keeper", {"account_id": "main", "topics": "nodes"}, 403),
        ("keeper", {"account_id": "main", "topics": "calls,secrets"}, 400),
        ("good", {"account_id": "main"}, 403),
        ("expired", {"account_id": "main"}, 401),
    ],
)
def test_streams_that_the_caller_may_not_read_are_refused(running: Running, name: str, query: dict, status: int):
    ids = {"main": running.tenants.account_id, "other": running.tenants.other_account_id}
    if "account_id" in query:
        query = query | {"account_id": ids[query["account_id"]]}
    response = httpx.get(f"{running.gateway.base_url}/events", params=query, headers=running.headers(name), timeout=60)
    assert response.status_code == status, response.text


@pytest.mark.full
def test_stream_ends_when_the_account_is_blocked(running: Running, follow):
    account_id = running.tenants.other_account_id
    key = running.headers("global key")
    follower = follow(key, account_id=account_id, topics="calls")

    async def block(is_blocked: bool) -> None:
        database = Database.connect(running.site.database_url)
        await accounts.set_blocked(database, account_id, is_blocked)
        await database.close()

    asyncio.run(block(True))
    assert follower.has_ended.wait(PATIENCE_S)
    asyncio.run(block(False))
    url = f"{running.gateway.base_url}/accounts/{account_id}"
    wait_until_blocking(lambda: httpx.get(url, headers=key, timeout=60).status_code == 200)


def test_batches_are_events_of_their_account(running: Running, operator, follow):
    own = follow(running.headers("keeper"), account_id=running.tenants.account_id, topics="jobs")
    other = follow(running.headers("global key"), account_id=running.tenants.other_account_id, topics="jobs")
    everything = follow(operator, topics="jobs,publications")
    url = f"{running.account_url}/ai/run/{PARROT}?queueRequest=true"

    def has_event() -> bool:  # the first batches may precede the first read
        body = {"requests": [{"prompt": "x"}]}
        httpx.post(url, json=body, headers=running.headers(), timeout=60).raise_for_status()
        return bool(own.of("jobs")) and bool(everything.of("jobs"))

    wait_until_blocking(has_event, interval_s=0.5)
    wait_until_blocking(lambda: any(job["state"] == "finished" for job in own.of("jobs")))
    assert own.of("jobs")[-1]["progress"]["total"] == 1
    assert not other.of("jobs")


def test_calls_that_were_missed_are_repeated_after_a_reconnect(running: Running, operator, follow):
    first, second = run(running), run(running)
    running.site.usage_row(second)
    follower = follow(operator | {"last-event-id": first}, topics="calls")
    wait_until_blocking(lambda: follower.of("calls"))
    assert second in [row["request_id"] for row in follower.of("calls")]
    assert first not in [row["request_id"] for row in follower.of("calls")]


@pytest.mark.full
def test_client_that_stops_reading_is_disconnected(running: Running, operator: dict[str, str]):
    address = urlsplit(running.gateway.url)
    assert address.hostname is not None

    def num_ended() -> float:
        return running.gateway.metric('hearth_requests_total{route="/client/v4/events",status="200"}')

    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(PATIENCE_S)
        connection.connect((address.hostname, address.port))
        lines = "".join(f"{name}: {value}\r\n" for name, value in operator.items())
        request = f"GET /client/v4/events?topics=nodes HTTP/1.1\r\nHost: {address.netloc}\r\n{lines}\r\n"
        connection.sendall(request.encode())
        assert b"200 OK" in connection.recv(1024)
        before = num_ended()
        nodes = [running.site.add_node(f"busy{number}") for number in range(4)]

        def is_disconnected() -> bool:
            for each in nodes:
                each.num_waiting += 1
                each.device_name = "x" * 1_000_000 + str(each.num_waiting)
                each.publish()
            return num_ended() > before

        wait_until_blocking(is_disconnected, interval_s=0.3)
        for each in nodes:
            running.site.nodes.pop(each.node_id).stop()


async def test_stream_with_too_much_unread_data_ends():
    hub = EventHub()

    async def flood():
        for number in range(MAX_UNREAD_FRAMES + 10):
            yield number
        await asyncio.Event().wait()

    stream = hub.open("a", [("numbers", "", flood)])
    await wait_until(lambda: stream.is_over)
    hub.close_stream(stream)
    await hub.close()


def test_streams_of_an_account_are_limited_whatever_tokens_it_has(running: Running, follow):
    """The account is new: streams that earlier tests have closed may still be counted for theirs."""
    account_id, first, second = asyncio.run(_make_account(running))
    headers = [{"Authorization": f"Bearer {secret}"} for secret in (first, second)]
    opened = [follow(headers[0], account_id=account_id, topics="jobs") for _ in range(MAX_STREAMS_PER_CALLER)]
    url = f"{running.gateway.base_url}/events?account_id={account_id}&topics=jobs"
    refused = httpx.get(url, headers=headers[1], timeout=60)
    assert refused.status_code == 429, refused.text
    for follower in opened:
        follower.close()


async def _make_account(running: Running) -> tuple[str, str, str]:
    """Return the id of a new account and the secrets of two of its tokens."""
    database = Database.connect(running.site.database_url)
    try:
        account_id = (await accounts.create(database, "streams")).account_id
        made = [
            await api_tokens.create(database, PEPPER, account_id, name, [ACCOUNT_READ], kind="account")
            for name in ("reader", "second reader")
        ]
        return account_id, made[0].secret, made[1].secret
    finally:
        await database.close()


async def test_streams_of_a_caller_are_limited_and_share_one_source():
    hub, num_started, has_closed = EventHub(), 0, asyncio.Event()

    async def source():
        nonlocal num_started
        num_started += 1
        try:
            yield "hello"
            await asyncio.Event().wait()
        finally:
            has_closed.set()

    streams = [hub.open("a", [("greetings", "", source)]) for _ in range(MAX_STREAMS_PER_CALLER)]
    with pytest.raises(TooManyStreams):
        hub.open("a", [("greetings", "", source)])
    other = hub.open("b", [("greetings", "", source)])
    assert await other.take(PATIENCE_S) == b'event: greetings\ndata: "hello"\n\n'
    assert num_started == 1
    for stream in (*streams, other):
        hub.close_stream(stream)
    await asyncio.wait_for(has_closed.wait(), PATIENCE_S)
    await hub.close()
