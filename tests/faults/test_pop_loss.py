"""`hearth up --pops lis,fra,nrt --nodes 2`: three places with two nodes each. Losing a place loses no call and no usage
entry."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.cli.test_up import Up
from tests.waiting import wait_until_blocking

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

POPS = ("lis", "fra", "nrt")
NUM_CALLS, NUM_CLIENTS = 120, 6


def test_calls_and_usage_survive_the_loss_of_a_pop(short_tmp_path: Path):
    up = Up(short_tmp_path / "p", "--pops", ",".join(POPS), "--nodes", "2", "--no-starter").wait_ready()
    try:
        dev = up.dev
        by_pop = {pop: [node for node in dev["pids"]["nodes"] if node.startswith(pop)] for pop in POPS}
        assert [len(nodes) for nodes in by_pop.values()] == [2, 2, 2]
        assert {float(dev["settings"][node]["HEARTH_NODE_MEMORY_SHARE"]) for node in by_pop["lis"]} == {1 / 6}
        url = f"{dev['base_url']}/accounts/{dev['account_id']}/ai"
        headers = {"authorization": f"Bearer {dev['api_token']}"}

        def call(number: int) -> httpx.Response:
            if number == NUM_CALLS // 3:
                for node in by_pop["lis"]:
                    os.kill(dev["pids"]["nodes"][node], signal.SIGKILL)
            body = {"prompt": f"Question {number}: where is Lisbon?", "max_tokens": 8}
            return httpx.post(f"{url}/run/@cf/hearth/spark", headers=headers, json=body, timeout=120)

        with ThreadPoolExecutor(NUM_CLIENTS) as clients:
            responses = list(clients.map(call, range(NUM_CALLS)))
        assert [response.status_code for response in responses] == [200] * NUM_CALLS
        ids = {response.headers["cf-ai-req-id"] for response in responses}

        def recorded() -> dict[str, str]:
            found = httpx.get(f"{url}/usage/calls", headers=headers, params={"limit": 500}, timeout=60)
            return {entry["request_id"]: entry["node_id"] for entry in found.raise_for_status().json()["result"]}

        wait_until_blocking(lambda: ids <= recorded().keys())
        nodes = [recorded()[request_id] for request_id in ids]
        assert len(nodes) == NUM_CALLS
        assert {node.partition("-")[0] for node in nodes} & {"fra", "nrt"}, "other places took calls"
    finally:
        up.stop()
