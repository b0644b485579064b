"""The process: startup, startup errors, draining, exit, and behavior while stores are unavailable."""

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from bench import figures
from gateway.settings import GatewaySettings
from telemetry.settings import SettingError, read_settings
from tests.gateway.inference.test_text_generation import events_of, run, script
from tests.gateway.process import PARROT, GatewayProcess
from tests.gateway.site import Running, Site
from tests.postgres_server import PostgresServer
from tests.processes import is_running
from tests.waiting import wait_until_blocking


@pytest.fixture(scope="module")
def site(new_site: Callable[..., Site]) -> Site:
    site = new_site()
    site.add_node("n1")
    return site


def in_background(job: Callable[[], httpx.Response]) -> tuple[threading.Thread, list[httpx.Response]]:
    responses: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: responses.append(job()))
    thread.start()
    return thread, responses


def test_sigterm_drains_calls_and_exits_with_zero(site: Site):
    running = Running(site, site.gateway().start())
    with httpx.Client(headers=running.headers(), timeout=60) as client, httpx.Client(timeout=60) as probe:
        assert probe.get(f"{running.gateway.url}/readyz").status_code == 200
        site.nodes["n1"].hold()
        held = {"prompt": script(held_after=2), "stream": True}
        thread, responses = in_background(lambda: run(client, running, held))
        wait_until_blocking(lambda: running.gateway.metric("hearth_calls_in_flight") == 1)
        running.gateway.terminate()
        wait_until_blocking(lambda: probe.get(f"{running.gateway.url}/readyz").status_code == 503)
        refused = run(probe, running, {"prompt": "x"}, headers=running.headers())
        assert (refused.status_code, refused.json()["errors"][0]["code"]) == (503, 11001)
        assert refused.headers["retry-after"]
        site.nodes["n1"].go_on()
        thread.join()
    assert running.gateway.wait() == 0
    assert events_of(responses[0])[-1] == "[DONE]"
    assert len(site.usage_rows(responses[0].headers["cf-ai-req-id"])) == 1
    figures.record("P14", "1 of 1 running streams finished, with one usage row", f"pytest {Path(__file__).name}")


@pytest.mark.parametrize("why", ["timeout", "second signal"])
def test_calls_still_running_after_the_drain_timeout_fail_and_are_metered(site: Site, why: str):
    environ = {"HEARTH_DRAIN_TIMEOUT_S": "0.3"} if why == "timeout" else {}
    running = Running(site, site.gateway(**environ).start())
    site.nodes["n1"].hold()
    with httpx.Client(headers=running.headers(), timeout=60) as client:
        body = {"prompt": script(held_after=2), "stream": True}
        with client.stream("POST", f"{running.account_url}/ai/run/{PARROT}", json=body) as response:
            lines = response.iter_lines()
            assert json.loads(next(lines).removeprefix("data: "))["response"], "the node has said something"
            running.gateway.terminate()
            if why == "second signal":
                wait_until_blocking(lambda: not running.gateway.is_ready())
                running.gateway.terminate()
            last = [line for line in lines if line][-1]
    assert running.gateway.wait() == 0
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == 3008
    (row,) = site.usage_rows(response.headers["cf-ai-req-id"])
    assert row["completion_tokens"] > 0


def test_usage_entries_survive_a_kill_of_the_gateway(site: Site):
    running = Running(site, site.gateway().start())
    with httpx.Client(headers=running.headers(), timeout=60) as client:
        ids = [run(client, running, {"prompt": "x"}).headers["cf-ai-req-id"] for _ in range(5)]
    assert running.gateway.process is not None
    running.gateway.process.kill()
    running.gateway.process.wait()
    again = GatewayProcess(running.gateway.folder, site.database_url, site.redis.url)
    site.gateways.append(again)
    again.start()
    for request_id in ids:
        assert site.usage_row(request_id)["status"] == "stop"


def test_known_nodes_serve_while_redis_is_unavailable(new_site: Callable[..., Site]):
    site = new_site()
    site.add_node("n1")
    running = Running(site, site.gateway().start())
    site.redis.stop()
    wait_until_blocking(lambda: "presence was not read" in running.gateway.log_text())
    with httpx.Client(headers=running.headers(), timeout=60) as client:
        for _ in range(3):
            assert run(client, running, {"prompt": "x"}).status_code == 200
    assert running.gateway.is_ready()


def test_known_tokens_work_while_the_database_is_unavailable_and_unknown_ones_get_503(
    new_site: Callable[..., Site], own_postgres: PostgresServer
):
    site = new_site(own_postgres.url)
    site.add_node("n1")
    running = Running(site, site.gateway().start())
    with httpx.Client(timeout=60) as client:
        known = running.headers("good")
        assert run(client, running, {"prompt": "x"}, headers=known).status_code == 200
        own_postgres.kill()
        unknown = wait_until_blocking(lambda: refusal_503(client, running))
        assert unknown.json()["errors"][0]["code"] == 11002
        assert unknown.headers["retry-after"]
        for _ in range(3):
            assert run(client, running, {"prompt": "x"}, headers=known).status_code == 200
        assert running.gateway.is_ready()
        assert running.gateway.metric("hearth_usage_backlog") >= 3
        own_postgres.start()
    wait_until_blocking(lambda: running.gateway.metric("hearth_usage_backlog") == 0)
    assert running.gateway.metric("hearth_internal_errors_total") == 0
    assert running.gateway.stop() == 0


def refusal_503(client: httpx.Client, running: Running) -> httpx.Response | None:
    response = run(client, running, {"prompt": "x"}, headers=running.headers("write"))
    return response if response.status_code == 503 else None


PARENT = """
import signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-m", "gateway"])
print(child.pid, flush=True)
signal.pause()
"""


def test_process_ends_when_its_parent_dies(site: Site):
    gateway = site.gateway()
    gateway.folder.mkdir()
    with gateway.log_file.open("wb") as log:
        parent = subprocess.Popen(
            [sys.executable, "-c", PARENT], env=gateway.full_environ(), stdout=subprocess.PIPE, stderr=log
        )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    wait_until_blocking(lambda: "gateway listening" in gateway.log_text())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_until_blocking(lambda: not is_running(pid))


GOOD_ENVIRON = {
    "DATABASE_URL": "sqlite:///x/y.db",
    "REDIS_URL": "unix:///x/redis.sock?db=0",
    "HEARTH_TOKEN_PEPPER": "aa" * 32,
    "HEARTH_CACHE_SECRET": "bb" * 32,
    "HEARTH_SERVICE_RING": "/x/ring.json",
    "HEARTH_SERVICE_KEYS": "/x/keys",
    "HEARTH_SPOOL_DIR": "/x/spool",
}


def test_required_settings_suffice():
    settings = read_settings(GatewaySettings, GOOD_ENVIRON)
    assert (settings.host, settings.port, settings.pop) == ("127.0.0.1", 8787, "local")
    assert (settings.call_timeout_s, settings.max_body_bytes) == (120, 10 * 1024 * 1024)


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({"DATABASE_URL": ""}, "DATABASE_URL"),
        ({"DATABASE_URL": "mysql://x"}, "DATABASE_URL"),
        ({"REDIS_URL": "http://x"}, "REDIS_URL"),
        ({"HEARTH_TOKEN_PEPPER": "not hex"}, "HEARTH_TOKEN_PEPPER"),
        ({"HEARTH_TOKEN_PEPPER": "abcd"}, "HEARTH_TOKEN_PEPPER"),
        ({"HEARTH_CACHE_SECRET": "ab" * 32, "HEARTH_TOKEN_PEPPER": "ab" * 32}, "must be different keys"),
        ({"HEARTH_SERVICE_RING": ""}, "HEARTH_SERVICE_RING is not set"),
        ({"HEARTH_SERVICE_KEYS": ""}, "HEARTH_SERVICE_KEYS is not set"),
        ({"HEARTH_PORT": "99999"}, "HEARTH_PORT"),
        ({"HEARTH_PORT": "http"}, "HEARTH_PORT"),
        ({"HEARTH_MAX_CALLS": "0"}, "HEARTH_MAX_CALLS"),
        ({"HEARTH_LOG_LEVEL": "loud"}, "HEARTH_LOG_LEVEL"),
        ({"HEARTH_SPOOL_DIR": ""}, "HEARTH_SPOOL_DIR"),
    ],
)
def test_invalid_setting_is_named_without_its_secret_value(environ: dict[str, str], named: str):
    with pytest.raises(SettingError, match=named) as caught:
        read_settings(GatewaySettings, GOOD_ENVIRON | environ)
    assert "not hex" not in str(caught.value)
    assert "abab" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({"HEARTH_CACHE_SECRET": "zz"}, "HEARTH_CACHE_SECRET"),
        ({"HEARTH_SPOOL_DIR": "/proc/nothing/here"}, "/proc/nothing"),
    ],
)
def test_invalid_setting_ends_the_process_with_one_line(site: Site, environ: dict[str, str], named: str):
    gateway = site.gateway(**environ)
    gateway.launch()
    assert gateway.wait() == 2
    (line,) = [line for line in gateway.log_text().splitlines() if not line.startswith("{")]
    assert line.startswith("gateway: ")
    assert named in line


def test_port_in_use_is_reported_in_one_line(site: Site):
    with socket.socket() as blocker:
        blocker.bind(("127.0.0.1", 0))
        blocker.listen()
        gateway = site.gateway(HEARTH_PORT=str(blocker.getsockname()[1]))
        gateway.launch()
        assert gateway.wait() == 2
    assert "HEARTH_PORT" in gateway.log_text()


def test_two_gateways_never_share_a_spool(site: Site):
    first = site.gateway().start()
    second = site.gateway(HEARTH_SPOOL_DIR=str(first.folder / "spool"))
    second.launch()
    assert second.wait() == 2
    assert first.is_ready()


def test_logs_are_json_without_secrets_or_request_text(site: Site):
    running = Running(site, site.gateway(HEARTH_LOG_LEVEL="debug").start())
    with httpx.Client(headers=running.headers(), timeout=60) as client:
        run(client, running, {"prompt": "marker-of-a-prompt"})
        run(client, running, {"prompt": "marker-of-a-prompt", "temperature": "marker-of-a-prompt"})
        client.get(f"{running.gateway.url}/client/v4/marker-of-a-path")
    assert running.gateway.stop() == 0
    assert [line for line in running.gateway.log_lines() if line["message"] == "request"]
    text = running.gateway.log_text()
    assert "marker-of" not in text
    assert running.tenants.secrets["good"] not in text
