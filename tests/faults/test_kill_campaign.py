"""Nodes, ranks and the gateway are killed at random moments under load; what clients saw and the ledger must agree.

The seed is printed with a failure; the moments are the machine's, so a seed makes runs alike, not equal.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from bench import figures
from tests.end_to_end.platform import Platform, wait_for
from tests.faults.test_platform_faults import num_held_blocks, num_running, wait_until_whole

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

SEED = 20
NUM_CLIENTS = 6
NUM_NODE_KILLS = 6
BLAMED = (400, 5004)
LOST = (408, 3008)


@dataclass
class Seen:
    """What one client saw of one call."""

    request_id: str
    status: int
    is_stream: bool
    completion_tokens: int | None = None
    error_code: int | None = None
    is_cut: bool = False  # the connection broke


@dataclass
class Client:
    """Calls one after the other until told to stop."""

    platform: Platform
    number: int
    is_over: threading.Event
    seen: list[Seen] = field(default_factory=list)
    num_refused_connections: int = 0

    def run(self) -> None:
        choose = random.Random(SEED * 100 + self.number)
        url = f"{self.platform.ai_url()}/run/{self.platform.chat_model}"
        while not self.is_over.is_set():
            body = {"prompt": f"Tell me a story about {choose.random()}.", "max_tokens": choose.choice([1, 20, 200])}
            body |= {"ignore_eos": True, "temperature": 0}
            headers = {"x-session-affinity": f"s{choose.randrange(8)}"}
            try:
                with self.platform.client() as client:
                    if choose.random() < 0.5:
                        self._whole(client.post(url, json=body, headers=headers))
                    else:
                        with client.stream("POST", url, json=body | {"stream": True}, headers=headers) as response:
                            self._stream(response)
            except httpx.TransportError:
                self.num_refused_connections += 1
                time.sleep(0.1)

    def _whole(self, response: httpx.Response) -> None:
        seen = Seen(response.headers["cf-ai-req-id"], response.status_code, is_stream=False)
        answer = response.json()
        if seen.status == 200:
            seen.completion_tokens = answer["result"]["usage"]["completion_tokens"]
        else:
            seen.error_code = answer["errors"][0]["code"]
        self.seen.append(seen)

    def _stream(self, response: httpx.Response) -> None:
        seen = Seen(response.headers["cf-ai-req-id"], response.status_code, is_stream=True)
        self.seen.append(seen)
        if seen.status != 200:
            seen.error_code = json.loads(response.read())["errors"][0]["code"]
            return
        is_done = False
        try:
            for line in response.iter_lines():
                if not line:
                    continue
                assert not is_done, "something came after [DONE]"
                if line == "data: [DONE]":
                    is_done = True
                    continue
                event = json.loads(line.removeprefix("data: "))
                if event.get("usage"):
                    seen.completion_tokens = event["usage"]["completion_tokens"]
                if "error" in event or "errors" in event:
                    seen.error_code = event["errors"][0]["code"]
        except httpx.TransportError:
            seen.is_cut = True
            return
        assert is_done != (seen.error_code is not None), "a stream ends with [DONE] or with an error"


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory):
    running = Platform(tmp_path_factory.mktemp("campaign"), environ={"HEARTH_NODE_STEP_TIMEOUT_S": "1"}).start()
    yield running
    assert running.stop() == 0


def kill_nodes(platform: Platform, clients: list[Client]) -> None:
    """No call is there at two deaths, however slow the machine: each client has begun two more after every kill."""
    choose = random.Random(SEED)
    for _ in range(NUM_NODE_KILLS):
        time.sleep(choose.uniform(0.2, 1.5))
        os.kill(choose.choice(list(platform.dev["pids"]["nodes"].values())), signal.SIGKILL)
        counts = [len(client.seen) + 2 for client in clients]
        wait_until_whole(platform)
        wait_for(
            "every call that was there has ended",
            lambda: all(len(client.seen) >= count for client, count in zip(clients, counts, strict=True)),  # noqa: B023
        )


def kill_ranks(platform: Platform, _clients: list[Client]) -> None:
    """Two of each node, so that none is out of service for having crashed too often; every second one hangs instead."""
    choose = random.Random(SEED)
    nodes = list(platform.dev["pids"]["nodes"]) * 2
    for number, node_id in enumerate(nodes):
        time.sleep(choose.uniform(0.5, 2.0))
        ranks = wait_for("a rank", lambda node_id=node_id: platform.rank_pids(node_id))
        for rank in ranks:
            os.kill(rank, signal.SIGSTOP if number % 2 else signal.SIGKILL)
        wait_for("another rank", lambda node_id=node_id, old=ranks: platform.rank_pids(node_id) not in ([], old))
        wait_for("both are hot", lambda: platform.num_hot == 2)


def kill_gateway(platform: Platform, _clients: list[Client]) -> None:
    time.sleep(1.0)
    os.kill(platform.dev["pids"]["gateway"], signal.SIGKILL)
    wait_for("the gateway is back", lambda: is_ready(platform))
    time.sleep(1.0)


def is_ready(platform: Platform) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{platform.port}/readyz", timeout=2).status_code == 200
    except httpx.HTTPError:
        return False


@pytest.mark.parametrize("kill", [kill_nodes, kill_ranks, kill_gateway])
def test_ledger_matches_clients_after_killing_processes(campaign: Platform, kill, tmp_path: Path):
    is_over = threading.Event()
    clients = [Client(campaign, number, is_over) for number in range(NUM_CLIENTS)]
    threads = [threading.Thread(target=client.run) for client in clients]
    for thread in threads:
        thread.start()
    try:
        kill(campaign, clients)
    finally:
        is_over.set()
        for thread in threads:
            thread.join(timeout=60)
    seen = [one for client in clients for one in client.seen]
    assert len(seen) > 3 * NUM_CLIENTS, "hardly any load"
    wait_for("nothing is held", lambda: num_running(campaign) == 0 and num_held_blocks(campaign) == 0)
    check_what_clients_saw(seen, is_gateway_killed=kill is kill_gateway)
    check_who_was_unlucky(campaign, seen, most=2 if kill is kill_ranks else 0)
    check_ledger(campaign, seen)
    record_figures(kill.__name__.replace("_", " "), seen)


def record_figures(fault: str, seen: list[Seen]) -> None:
    source = f"pytest {Path(__file__).name}"
    whole = [one for one in seen if not one.is_stream and not one.is_cut]
    num_answered = sum(one.status == 200 for one in whole)
    figures.record("P1", f"{fault}: {num_answered} of {len(whole)} calls without streaming answered", source)
    streams = [one for one in seen if one.is_stream and not one.is_cut and one.status == 200]
    num_ended = sum(one.error_code is not None for one in streams)
    figures.record(
        "P2", f"{fault}: {num_ended} of {len(streams)} streams interrupted, each with one error event", source
    )
    num_rows = sum(not one.is_cut for one in seen)
    figures.record("P6", f"{fault}: {num_rows} of {num_rows} calls in the ledger, one row each", source)


def check_what_clients_saw(seen: list[Seen], *, is_gateway_killed: bool) -> None:
    outcomes = Counter((one.is_stream, one.status, one.error_code, one.is_cut) for one in seen)
    for is_stream, status, error_code, is_cut in outcomes:
        if is_cut:
            assert is_gateway_killed, outcomes
        elif is_stream and status == 200:
            assert error_code in (None, 3008), outcomes
        else:
            assert (status, error_code) in ((200, None), BLAMED, LOST), outcomes


def check_who_was_unlucky(platform: Platform, seen: list[Seen], most: int) -> None:
    """A call that is sent again after one death and is there at the next looks like the cause, or, if it had been
    cleared, is sent a third time and can meet a third."""
    unlucky = [one for one in seen if (one.status, one.error_code) in (BLAMED, LOST)]
    assert len(unlucky) <= most
    for one in unlucky:
        (row,) = wait_for("the usage row", lambda one=one: platform.usage_rows(one.request_id))
        assert row["attempts"] == (2 if one.status == BLAMED[0] else 3)


def check_ledger(platform: Platform, seen: list[Seen]) -> None:
    """Every call that ended towards its client has one row with the same count of tokens."""
    ended = [one for one in seen if not one.is_cut]
    wanted = {one.request_id for one in ended}

    def rows() -> dict[str, dict]:
        return {row["request_id"]: row for row in platform.usage_rows()}

    wait_for("every row", lambda: wanted <= rows().keys())
    found = rows()
    for one in ended:
        if one.completion_tokens is not None:
            assert found[one.request_id]["completion_tokens"] == one.completion_tokens
