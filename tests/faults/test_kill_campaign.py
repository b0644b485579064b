"""Kill campaign: nodes, ranks and the gateway are killed at random moments under load; clients and ledger must agree.

The seed makes runs similar, not equal, because the machine decides what each moment interrupts.
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
from tests.faults.test_platform_faults import num_held_blocks, num_running, wait_until_recovered
from tests.platform import Platform, wait_for

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

SEED = 20
NUM_CLIENTS = 6
NUM_NODE_KILLS = 4


@dataclass
class ObservedCall:
    """The observations of one client about its call."""

    request_id: str
    status: int
    is_stream: bool
    completion_tokens: int | None = None
    error_code: int | None = None
    is_disconnected: bool = False  # the connection broke


@dataclass
class Client:
    """A client that makes one call after the other until `is_over` is set.

    Every campaign has its own prompts: prompts that were in two crashes stay quarantined for five minutes.
    """

    platform: Platform
    name: str  # seeds the client and is part of its prompts
    is_over: threading.Event
    observed: list[ObservedCall] = field(default_factory=list)
    num_refused_connections: int = 0

    def run(self) -> None:
        choose = random.Random(f"{SEED} {self.name}")
        url = f"{self.platform.ai_url()}/run/{self.platform.chat_model}"
        while not self.is_over.is_set():
            body = {
                "prompt": f"Tell me a story about {self.name} {choose.random()}.",
                "max_tokens": choose.choice([1, 20, 200]),
            }
            body |= {"ignore_eos": True, "temperature": 0}
            headers = {"x-session-affinity": f"s{choose.randrange(8)}"}
            try:
                with self.platform.client() as client:
                    if choose.random() < 0.5:
                        self._read_complete(client.post(url, json=body, headers=headers))
                    else:
                        with client.stream("POST", url, json=body | {"stream": True}, headers=headers) as response:
                            self._read_stream(response)
            except httpx.TransportError:
                self.num_refused_connections += 1
                time.sleep(0.1)

    def _read_complete(self, response: httpx.Response) -> None:
        observed = ObservedCall(response.headers["cf-ai-req-id"], response.status_code, is_stream=False)
        body = response.json()
        if observed.status == 200:
            observed.completion_tokens = body["result"]["usage"]["completion_tokens"]
        else:
            observed.error_code = body["errors"][0]["code"]
        self.observed.append(observed)

    def _read_stream(self, response: httpx.Response) -> None:
        observed = ObservedCall(response.headers["cf-ai-req-id"], response.status_code, is_stream=True)
        self.observed.append(observed)
        if observed.status != 200:
            observed.error_code = json.loads(response.read())["errors"][0]["code"]
            return
        is_done = False
        try:
            for line in response.iter_lines():
                if not line:
                    continue
                assert not is_done, "an event followed [DONE]"
                if line == "data: [DONE]":
                    is_done = True
                    continue
                event = json.loads(line.removeprefix("data: "))
                if event.get("usage"):
                    observed.completion_tokens = event["usage"]["completion_tokens"]
                if "error" in event or "errors" in event:
                    observed.error_code = event["errors"][0]["code"]
        except httpx.TransportError:
            observed.is_disconnected = True
            return
        assert is_done != (observed.error_code is not None), "a stream ends with [DONE] or with an error"


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory):
    running = Platform(tmp_path_factory.mktemp("campaign"), environ={"HEARTH_NODE_STEP_TIMEOUT_S": "1"}).start()
    yield running
    assert running.stop() == 0


def wait_for_two_more_calls(clients: list[Client]) -> None:
    """Wait until every client has started two more calls: no call that is running now is in the next crash too."""
    counts = [len(client.observed) + 2 for client in clients]
    wait_for(
        "every call that was there has ended",
        lambda: all(len(client.observed) >= count for client, count in zip(clients, counts, strict=True)),
    )


def kill_nodes(platform: Platform, clients: list[Client]) -> None:
    """Kill nodes, but never two with the same call."""
    choose = random.Random(SEED)
    for _ in range(NUM_NODE_KILLS):
        time.sleep(choose.uniform(0.2, 1.5))
        os.kill(choose.choice(list(platform.dev["pids"]["nodes"].values())), signal.SIGKILL)
        wait_until_recovered(platform)
        wait_for_two_more_calls(clients)


def kill_ranks(platform: Platform, clients: list[Client]) -> None:
    """Kill or suspend two ranks of each node, too few to take the model out of service and never two with the same
    call.
    """
    choose = random.Random(SEED)
    nodes = list(platform.dev["pids"]["nodes"]) * 2
    for number, node_id in enumerate(nodes):
        time.sleep(choose.uniform(0.5, 2.0))
        ranks = wait_for("a rank", lambda node_id=node_id: platform.rank_pids(node_id))
        for rank in ranks:
            os.kill(rank, signal.SIGSTOP if number % 2 else signal.SIGKILL)
        wait_for("another rank", lambda node_id=node_id, old=ranks: platform.rank_pids(node_id) not in ([], old))
        wait_for("both are hot", lambda: platform.num_hot == 2)
        wait_for_two_more_calls(clients)


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
    clients = [Client(campaign, f"{kill.__name__} {number}", is_over) for number in range(NUM_CLIENTS)]
    threads = [threading.Thread(target=client.run) for client in clients]
    for thread in threads:
        thread.start()
    try:
        kill(campaign, clients)
    finally:
        is_over.set()
        for thread in threads:
            thread.join(timeout=60)
    observed = [call for client in clients for call in client.observed]
    assert len(observed) > 3 * NUM_CLIENTS, "the load was too small"
    wait_for("nothing is held", lambda: num_running(campaign) == 0 and num_held_blocks(campaign) == 0)
    check_responses(observed, is_gateway_killed=kill is kill_gateway)
    check_ledger(campaign, observed)
    record_figures(kill.__name__.replace("_", " "), observed)


def record_figures(fault: str, observed: list[ObservedCall]) -> None:
    source = f"pytest {Path(__file__).name}"
    complete = [call for call in observed if not call.is_stream and not call.is_disconnected]
    num_answered = sum(call.status == 200 for call in complete)
    figures.record("P1", f"{fault}: {num_answered} of {len(complete)} calls without streaming answered", source)
    streams = [call for call in observed if call.is_stream and not call.is_disconnected and call.status == 200]
    num_ended = sum(call.error_code is not None for call in streams)
    figures.record(
        "P2", f"{fault}: {num_ended} of {len(streams)} streams interrupted, each with one error event", source
    )
    num_rows = sum(not call.is_disconnected for call in observed)
    figures.record("P6", f"{fault}: {num_rows} of {num_rows} calls in the ledger, one row each", source)


def check_responses(observed: list[ObservedCall], *, is_gateway_killed: bool) -> None:
    outcomes = Counter((call.is_stream, call.status, call.error_code, call.is_disconnected) for call in observed)
    for is_stream, status, error_code, is_disconnected in outcomes:
        if is_disconnected:
            assert is_gateway_killed, outcomes
        elif is_stream and status == 200:
            assert error_code in (None, 3008), outcomes
        else:
            assert (status, error_code) == (200, None), outcomes  # no call was in two crashes


def check_ledger(platform: Platform, observed: list[ObservedCall]) -> None:
    """Every call that ended for its client has one usage row with the same number of tokens."""
    ended = [call for call in observed if not call.is_disconnected]
    wanted = {call.request_id for call in ended}

    def rows() -> dict[str, dict]:
        return {row["request_id"]: row for row in platform.usage_rows()}

    wait_for("every row", lambda: wanted <= rows().keys())
    found = rows()
    for call in ended:
        if call.completion_tokens is not None:
            assert found[call.request_id]["completion_tokens"] == call.completion_tokens
