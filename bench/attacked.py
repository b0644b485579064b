"""Measure the latency of a good client while one attacker repeats one kind of request.

    python -m bench.attacked [--kinds "tiny chunks,slow files"] [--rounds 3] [--calls 300]

The gateway has a CPU core of its own, and the attacker, the good client, the node and Redis share another one, as if
the attacker were on another machine. Each round measures the good client alone, during the same attack on another
gateway (which takes as much CPU time from the good client), and during the attack. Prints the median of each 99th
percentile, and the lost calls. Anonymous attackers have 300 connections, accounts 64.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from storage.migrate import migrate
from tests.faults.attacks import ATTACKS
from tests.faults.test_floods import FLOODS, flood
from tests.gateway.process import PARROT, GatewayProcess
from tests.gateway.site import ACCOUNT_READ, KEEPERS_GROUPS, READ, WRITE, Running, Site
from tests.gateway.test_shared_resources import make_token

CLIENT_CORES, TARGET_CORES = {0}, {1}
NUM_CONNECTIONS = 300
WARM_UP_S = 2.0
SETTINGS = {"HEARTH_CLIENT_STALL_TIMEOUT_S": "5", "HEARTH_METRICS_MAX_AGE_S": "1", "HEARTH_DOCUMENT_TIMEOUT_S": "5"}


@contextlib.contextmanager
def attack(running: Running, kind: str) -> Iterator[None]:
    """Attack a gateway while the block runs."""
    if kind in FLOODS:
        with flood(running, kind):
            time.sleep(WARM_UP_S)
            yield
        return
    command = [sys.executable, "-m", "tests.faults.attacks", kind, str(running.gateway.port), str(NUM_CONNECTIONS)]
    with subprocess.Popen(command) as attacker:
        try:
            time.sleep(WARM_UP_S)
            yield
        finally:
            attacker.kill()


def call_ms(running: Running, num_calls: int) -> tuple[list[float], int]:
    """Make calls one after the other, half of them on new connections. Return their durations in milliseconds and the
    number of calls that failed."""
    took_ms, num_lost = [], 0
    port, path = running.gateway.port, f"/client/v4/accounts/{running.tenants.account_id}/ai/run/{PARROT}"
    kept = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    for number in range(num_calls):
        began_s = time.perf_counter()
        fresh = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection = kept if number % 2 else fresh
        try:
            connection.request("POST", path, b'{"prompt": "x"}', running.headers())
            response = connection.getresponse()
            response.read()
            num_lost += response.status != 200
        except (OSError, http.client.HTTPException):
            num_lost += 1
        fresh.close()
        took_ms.append((time.perf_counter() - began_s) * 1000)
    kept.close()
    return took_ms, num_lost


def p99(took_ms: list[float]) -> float:
    return sorted(took_ms)[int(len(took_ms) * 0.99) - 1]


def measure(target: Running, decoy: Running, kind: str, rounds: int, num_calls: int) -> str:
    """Return one line with the figures of one kind of attack."""
    alone, beside, during, lost = [], [], [], 0
    call_ms(target, 50)
    for _ in range(rounds):
        alone.append(p99(call_ms(target, num_calls)[0]))
        with attack(decoy, kind):
            beside.append(p99(call_ms(target, num_calls)[0]))
        with attack(target, kind):
            took_ms, num_lost = call_ms(target, num_calls)
        during.append(p99(took_ms))
        lost += num_lost
        time.sleep(1.0)
    alone_ms, beside_ms, during_ms = map(statistics.median, (alone, beside, during))
    return (
        f"{kind:40} alone {alone_ms:6.1f} ms, other gateway {beside_ms:6.1f} ms, attacked {during_ms:6.1f} ms: "
        f"{during_ms / alone_ms:5.1f} x alone, {during_ms / beside_ms:5.1f} x other, {lost} lost"
    )


def start_gateway(site: Site, cores: set[int], **settings: str) -> GatewayProcess:
    """Start a gateway on these CPU cores; its child processes inherit them."""
    os.sched_setaffinity(0, cores)
    gateway = site.gateway(OBJECTS_URL=f"file://{site.folder / 'objects'}", **SETTINGS, **settings).start()
    os.sched_setaffinity(0, CLIENT_CORES)
    return gateway


def main(kinds: list[str], rounds: int, num_calls: int) -> None:
    os.sched_setaffinity(0, CLIENT_CORES)
    with tempfile.TemporaryDirectory(prefix="hearth-bench-") as folder:
        template = Path(folder) / "template.db"
        asyncio.run(migrate(f"sqlite://{template}"))
        site = Site(template)
    try:
        site.add_node("n1")
        target = Running(site, start_gateway(site, TARGET_CORES))
        decoy = Running(site, start_gateway(site, CLIENT_CORES, HEARTH_BATCH_MAX_CALLS="0"))
        groups = (READ, WRITE, ACCOUNT_READ, *KEEPERS_GROUPS)
        site.tenants.secrets["flood"] = asyncio.run(make_token(site, site.tenants.other_account_id, *groups))
        for kind in kinds:
            print(measure(target, decoy, kind, rounds, num_calls), flush=True)
    finally:
        site.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", default=",".join((*ATTACKS, *FLOODS)))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--calls", type=int, default=300)
    options = parser.parse_args()
    main(options.kinds.split(","), options.rounds, options.calls)
