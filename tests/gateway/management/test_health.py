"""/metrics: rendered at most once a second, with an optional token, on an optional listener of its own."""

import re
import socket
import time
from collections.abc import Iterator
from contextlib import closing

import httpx
import pytest

from tests.gateway.http.test_framing import statuses
from tests.gateway.process import GatewayProcess
from tests.gateway.site import Running
from tests.waiting import PATIENCE_S, wait_until_blocking

TOKEN = "a token of the tests"


def test_metrics_are_rendered_at_most_once_a_second(running: Running):
    """Every request changes the metrics, so each rendering is different."""
    began_s = time.monotonic()
    request = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
    with (
        running.beside(HEARTH_METRICS_MAX_AGE_S="1") as gateway,
        closing(socket.create_connection(("127.0.0.1", gateway.port), PATIENCE_S)) as connection,
    ):
        connection.sendall(request * 50 + request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        heard = b""
        while data := connection.recv(1 << 20):
            heard += data
    assert statuses(heard) == [200] * 51
    counted = re.findall(rb'hearth_requests_total\{route="/metrics",status="200"\} (\S+)', heard)
    assert len(set(counted)) <= 2 + time.monotonic() - began_s


def test_metrics_with_a_token_are_refused_without_it(running: Running):
    token = TOKEN.replace(" ", "-")
    with running.beside(HEARTH_METRICS_TOKEN=token) as gateway:
        url = f"{gateway.url}/metrics"
        for given in (None, "Bearer", f"Bearer {token}x", f"Basic {token}", token, "Bearer \u00fc"):
            headers = {} if given is None else {"authorization": given.encode()}
            response = httpx.get(url, headers=headers)
            assert (response.status_code, response.json()["errors"][0]["code"]) == (401, 10000)
            assert "hearth_" not in response.text
        both = [("authorization", f"Bearer {token}"), ("authorization", f"Bearer {token}")]
        assert httpx.get(url, headers=both).status_code == 401
        assert "hearth_requests_total" in httpx.get(url, headers={"authorization": f"Bearer {token}"}).text
        assert httpx.get(f"{gateway.url}/readyz").status_code == 200


@pytest.fixture(scope="module")
def separate(running: Running) -> Iterator[tuple[GatewayProcess, str]]:
    """Yield a gateway with a separate listener for metrics, and that listener's URL."""
    with running.beside(HEARTH_METRICS_LISTEN="127.0.0.1:0") as gateway:
        lines = (line for line in gateway.log_lines() if line["message"] == "metrics listening")
        yield gateway, f"http://127.0.0.1:{next(lines)['port']}"


def test_separate_listener_serves_metrics_and_health_and_nothing_else(
    running: Running, separate: tuple[GatewayProcess, str]
):
    gateway, url = separate
    assert httpx.get(f"{gateway.url}/metrics").json()["errors"][0]["code"] == 7000
    assert "hearth_requests_total" in httpx.get(f"{url}/metrics").text
    assert httpx.get(f"{url}/healthz").status_code == httpx.get(f"{url}/readyz").status_code == 200
    for path in ("/docs", "/openapi.json", "/admin/session", f"/client/v4/accounts/{running.tenants.account_id}"):
        assert httpx.get(url + path, headers=running.headers()).json()["errors"][0]["code"] == 7000


def test_gateway_with_a_separate_listener_stops_on_request(running: Running):
    gateway = running.site.gateway(HEARTH_BATCH_MAX_CALLS="0", HEARTH_METRICS_LISTEN="127.0.0.1:0").start()
    gateway.terminate()
    assert gateway.wait() == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HEARTH_METRICS_LISTEN", "9091"),
        ("HEARTH_METRICS_LISTEN", "127.0.0.1:99999"),
        ("HEARTH_METRICS_LISTEN", "192.0.2.1:9091"),
        ("HEARTH_METRICS_TOKEN", "short"),
        ("HEARTH_CORS_ORIGINS", "app.example"),
        ("HEARTH_CORS_ORIGINS", "https://app.example/"),
    ],
)
def test_invalid_setting_stops_the_start_with_its_name(running: Running, name: str, value: str):
    gateway = running.site.gateway(**{name: value})
    gateway.launch()
    assert gateway.wait() == 2
    assert wait_until_blocking(gateway.log_text).count(name) == 1
    assert name != "HEARTH_METRICS_TOKEN" or value not in gateway.log_text()
