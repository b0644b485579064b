"""One of four nodes is slow, and all nodes fail. A real gateway and fake nodes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from bench import figures
from tests.faults.proxy import FaultProxy
from tests.gateway.inference.test_text_generation import run, script
from tests.gateway.process import fake_node
from tests.gateway.site import Running, Site
from tests.waiting import wait_until_blocking

pytestmark = pytest.mark.full

SOURCE = f"pytest {Path(__file__).name}"
DELAY_S = 1.0  # delay in each direction
NUM_CLIENTS = 6
NUM_FAILING = 600
RETRY_BURST = 20


class Load:
    """Clients that send calls of new sessions one after the other, and the seconds of each call by when it began."""

    def __init__(self, running: Running) -> None:
        self._running = running
        self._is_over = threading.Event()
        self.calls: list[tuple[float, float]] = []

    def __enter__(self) -> Load:
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(NUM_CLIENTS)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(60)

    def _run(self, client_number: int) -> None:
        number = 0
        with httpx.Client(headers=self._running.headers(), timeout=60) as client:
            while not self._is_over.is_set():
                number += 1
                began_s = time.monotonic()
                run(client, self._running, {"prompt": f"{client_number} {number}"}).raise_for_status()
                self.calls.append((began_s, time.monotonic() - began_s))

    def p99_s(self, since_s: float) -> float:
        seconds = sorted(each for began_s, each in self.calls if began_s >= since_s)
        return seconds[int(0.99 * (len(seconds) - 1))]


def test_slow_node_gets_few_calls(new_site: Callable[..., Site]):
    site = new_site()
    for number in range(3):
        site.add_node(f"n{number}")
    slow = fake_node("slow", site.folder, site.redis.url)
    with FaultProxy(Path(slow.address.removeprefix("unix://"))) as proxy:
        slow.announced = f"tcp://127.0.0.1:{proxy.port}"
        site.nodes["slow"] = slow.start()
        running = Running(site, site.gateway().start())
        wait_until_blocking(lambda: running.gateway.metric("hearth_nodes_alive") == 4)
        with Load(running) as load:
            began_s = time.monotonic()
            wait_until_blocking(lambda: len(slow.executes) > 50 and time.monotonic() > began_s + 3)
            usual_s, share = load.p99_s(began_s), len(slow.executes) / site.num_executes
            proxy.delay(DELAY_S)
            time.sleep(10)  # time after which the promise holds
            measured_s, before, before_slow = time.monotonic(), site.num_executes, len(slow.executes)
            time.sleep(10)
            slow_share = (len(slow.executes) - before_slow) / (site.num_executes - before)
            p99_s = load.p99_s(measured_s)
    num_hedges = sum(running.gateway.metric(f'hearth_hedges_total{{first="{each}"}}') for each in ("first", "second"))
    figure = (
        f"share of the slow node {100 * slow_share:.1f} % ({100 * share:.0f} % before); time of a call (p99) "
        f"{p99_s:.3f} s, {usual_s:.3f} s before; {num_hedges:.0f} hedges of {len(load.calls)} calls"
    )
    figures.record("P4", figure, SOURCE)
    assert share > 0.1
    assert slow_share < 0.05, figure
    assert p99_s < DELAY_S, figure
    assert num_hedges <= 0.02 * len(load.calls) + 5, figure  # 5 are allowed at once


def test_retries_do_not_multiply_the_load_while_all_nodes_fail(new_site: Callable[..., Site]):
    site = new_site()
    for number in range(4):
        site.add_node(f"n{number}")
    running = Running(site, site.gateway(HEARTH_RETRY_BURST=str(RETRY_BURST)).start())
    wait_until_blocking(lambda: running.gateway.metric("hearth_nodes_alive") == 4)
    with httpx.Client(headers=running.headers(), timeout=60) as client, ThreadPoolExecutor(NUM_CLIENTS) as clients:

        def call(number: int) -> int:
            prompt = script(tokens=[], end="internal", is_retryable=True, on="", gap_s=number * 1e-9)
            return run(client, running, {"prompt": prompt}).status_code

        statuses = list(clients.map(call, range(NUM_FAILING)))
    attempts = site.num_executes / NUM_FAILING
    figures.record("P5", f"{attempts:.3f} attempts per call, with {RETRY_BURST} retries allowed at once", SOURCE)
    assert set(statuses) == {408}
    assert 1.05 <= attempts <= 1.1 + RETRY_BURST / NUM_FAILING
