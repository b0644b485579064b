"""The processes of docker-compose.yml, started with the commands and environment of that file.

No containers are used: volumes are folders, and addresses are those of this machine.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.deploy.test_compose import COMPOSE, ROOT, environment, filled, mounts_of
from tests.ports import free_port
from tests.waiting import wait_until_blocking

pytestmark = [pytest.mark.full, pytest.mark.timeout(400)]  # a real node loads its models

HOME = "/var/lib/hearth"


class Deployment:
    """The running services. Volumes are folders, seen by each service in place of the container's `/var/lib/hearth`."""

    def __init__(self, folder: Path, database_url: str, redis_url: str) -> None:
        self._folder = folder
        self._services: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())["services"]
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.http_port, node_port = free_port(), free_port()
        node = f"tcp://127.0.0.1:{node_port}"
        self._here = {
            "DATABASE_URL": database_url, "REDIS_URL": redis_url, "OBJECTS_URL": f"file://{folder}/objects",
            "HEARTH_HOST": "127.0.0.1", "HEARTH_PORT": str(self.http_port), "HEARTH_NODE_HTTP": "127.0.0.1:0",
            "HEARTH_NODE_LISTEN": node, "HEARTH_NODE_ADVERTISE": node,
        }  # fmt: skip

    def volume(self, name: str) -> Path:
        return self._folder / "volumes" / name

    def _view(self, name: str) -> str:
        root = self._folder / "views" / name
        for target, (volume, _) in sorted(mounts_of(self._services[name]).items()):
            place = root / target.removeprefix(HOME + "/")
            place.parent.mkdir(parents=True, exist_ok=True)
            self.volume(volume).mkdir(parents=True, exist_ok=True)
            if not place.exists():
                place.symlink_to(self.volume(volume))
        return str(root)

    def environ(self, name: str) -> dict[str, str]:
        """Return a service's environment: the variables of the file and PATH."""
        given = environment(self._services[name])
        own = {env: self._here.get(env, value).replace(HOME, self._view(name)) for env, value in given.items()}
        inherited = {env: os.environ[env] for env in ("PATH", "HOME", "OMP_NUM_THREADS") if env in os.environ}
        return {**inherited, "PYTHONPATH": str(ROOT), **own}

    def _command(self, name: str) -> list[str]:
        service = self._services[name]
        command = service.get("command")
        if command is None:
            text = (ROOT / service["build"]["dockerfile"]).read_text()
            (found,) = re.findall(r"^CMD (.*)$", text, re.M)
            command = json.loads(found)
        return _here([filled(word) for word in command])

    def run(self, name: str, command: str = "") -> str:
        """Run `docker compose run --rm NAME COMMAND` to its end and return its output."""
        words = _here(shlex.split(command)) if command else self._command(name)
        done = subprocess.run(words, env=self.environ(name), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self, name: str) -> None:
        with (self._folder / f"{name}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen(
                self._command(name), env=self.environ(name), stdout=log, stderr=log
            )

    def log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text()

    @property
    def is_ready(self) -> bool:
        for name, process in self._processes.items():
            assert process.poll() is None, self.log(name)
        try:
            return httpx.get(f"http://127.0.0.1:{self.http_port}/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def stop(self) -> None:
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            process.wait(30)


def _here(command: list[str]) -> list[str]:
    start = {"hearth": ["-m", "cli.main"], "python": []}[command[0]]
    return [sys.executable, *start, *command[1:]]


@pytest.fixture
def deployment(short_tmp_path: Path, new_postgres_url: str, redis_url: str) -> Iterator[Deployment]:
    made = Deployment(short_tmp_path, new_postgres_url, redis_url)
    yield made
    made.stop()


def test_first_start_creates_service_keys_that_can_be_rotated(deployment: Deployment):
    """Keys are created, used, rotated, revoked and restored without a restart and without a shared secret."""
    deployment.run("migrate")
    deployment.run("keys")
    made = {name: list(deployment.volume(name).iterdir()) for name in ("gateway-key", "node-key")}
    for files in made.values():
        assert [stat.S_IMODE(file.stat().st_mode) for file in files] == [0o600]
    deployment.run("keys")
    assert made == {name: list(deployment.volume(name).iterdir()) for name in made}, "the second start makes none"
    assert not list(deployment.volume("ring").glob("*.pem"))
    deployment.start("node")
    deployment.start("gateway")
    wait_until_blocking(lambda: deployment.is_ready, 120)
    assert "gateway connected" in deployment.log("node")

    account = json.loads(deployment.run("gateway", "hearth account create main --json"))["account_id"]
    token = json.loads(deployment.run("gateway", f"hearth token create --account {account} --name x --json"))
    ask = {
        "url": f"http://127.0.0.1:{deployment.http_port}/client/v4/accounts/{account}/ai/run/@cf/hearth/spark",
        "headers": {"Authorization": f"Bearer {token['secret']}"},
        "json": {"prompt": "Hello", "max_tokens": 4},
        "timeout": 60,
    }
    assert httpx.post(**ask).status_code == 200
    for name in ("gateway/gateway", "node/node-1"):
        deployment.run("keys", f"hearth service rotate {name} --overlap 0s")
    deployment.run("keys", "hearth service revoke --subject node/node-1")
    wait_until_blocking(lambda: not deployment.is_ready)
    assert httpx.post(**ask).json()["errors"][0]["code"] == 3040
    deployment.run("keys", "hearth service reinstate node/node-1")
    deployment.run("keys")
    wait_until_blocking(lambda: deployment.is_ready)
    assert httpx.post(**ask).status_code == 200
    result = deployment.run("gateway", "hearth audit list --json")
    assert {"service_key.make", "service_key.rotate", "service_subject.revoke"} <= {
        entry["action"] for entry in json.loads(result)
    }
