"""A good client is served while an anonymous attacker with 300 connections repeats one kind of request.

For the comparison, the same attacker attacks another gateway on the same machine: it takes as much CPU time from the
good client, but not its gateway's attention.
"""

from __future__ import annotations

import contextlib
import http.client
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from tests.faults.attacks import ATTACKS
from tests.faults.conftest import errors_in
from tests.gateway.process import PARROT, GatewayProcess
from tests.gateway.site import Running, Site

NUM_CONNECTIONS = 300
NUM_CALLS = 300
WARM_UP_S = 2.0
MAX_P99_S = 3.0  # on a machine that also runs the attacker; the usual value is printed beside it


@pytest.fixture(scope="module")
def site(new_site: Callable[..., Site]) -> Site:
    site = new_site()
    site.add_node("n1")
    return site


@pytest.fixture(scope="module")
def target(site: Site) -> Running:
    return Running(site, site.gateway(HEARTH_CLIENT_STALL_TIMEOUT_S="5", HEARTH_METRICS_MAX_AGE_S="1").start())


@pytest.fixture(scope="module")
def decoy(site: Site) -> GatewayProcess:
    return site.gateway(HEARTH_CLIENT_STALL_TIMEOUT_S="5", HEARTH_METRICS_MAX_AGE_S="1").start()


@contextlib.contextmanager
def attacked(gateway: GatewayProcess, name: str) -> Iterator[None]:
    command = [sys.executable, "-m", "tests.faults.attacks", name, str(gateway.port), str(NUM_CONNECTIONS)]
    with subprocess.Popen(command) as attacker:
        try:
            yield
        finally:
            attacker.kill()


def call_seconds(running: Running, num_calls: int) -> list[float]:
    """Return the durations of calls one after the other, half of them on new connections. Every call must succeed."""
    seconds = []
    kept = http.client.HTTPConnection("127.0.0.1", running.gateway.port, timeout=60)
    path = f"/client/v4/accounts/{running.tenants.account_id}/ai/run/{PARROT}"
    for number in range(num_calls):
        began_s = time.perf_counter()
        fresh = http.client.HTTPConnection("127.0.0.1", running.gateway.port, timeout=60)
        connection = kept if number % 2 else fresh
        connection.request("POST", path, b'{"prompt": "x"}', running.headers())
        response = connection.getresponse()
        response.read()
        assert response.status == 200
        fresh.close()
        seconds.append(time.perf_counter() - began_s)
    kept.close()
    return seconds


def percentile_99_s(running: Running, attacked_gateway: GatewayProcess, name: str) -> float:
    """Return the 99th percentile of a good client's calls during an attack."""
    with attacked(attacked_gateway, name):
        time.sleep(WARM_UP_S)
        seconds = call_seconds(running, NUM_CALLS)
    return sorted(seconds)[int(len(seconds) * 0.99) - 1]


@pytest.mark.full
@pytest.mark.parametrize("name", ATTACKS)
def test_good_client_is_served_during_an_attack(target: Running, decoy: GatewayProcess, name: str):
    call_seconds(target, 50)
    usual_s = percentile_99_s(target, decoy, name)
    during_s = percentile_99_s(target, target.gateway, name)
    print(f"{name}: usually {usual_s * 1000:.1f} ms, during the attack {during_s * 1000:.1f} ms")  # noqa: T201 - the figures
    assert during_s <= MAX_P99_S
    assert errors_in(target.gateway) == ""
    assert target.gateway.metric("hearth_internal_errors_total") == 0
