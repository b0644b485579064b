"""The processes of docker-compose.yml, started with the commands and environment of that file.

No containers are used: volumes are folders, and addresses are those of this machine.
"""

from __future__ import annotations

import copy
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.deploy.test_compose import COMPOSE, GATEWAYS, NODES, ROOT, environment, filled, mounts_of
from tests.ports import free_port

HOME = "/var/lib/hearth"


class Deployment:
    """The running services. Volumes are folders, seen by each service in place of the container's `/var/lib/hearth`.
    `here` are variables that have other values than in the file."""

    def __init__(self, folder: Path, database_url: str, redis_url: str, **here: str) -> None:
        self._folder = folder
        self._services: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())["services"]
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.http_ports = {name: free_port() for name in GATEWAYS}
        self.node_ports = {name: free_port() for name in NODES}
        self._here = {
            "DATABASE_URL": database_url, "REDIS_URL": redis_url, "OBJECTS_URL": f"file://{folder}/objects",
            "HEARTH_HOST": "127.0.0.1", "HEARTH_NODE_HTTP": "127.0.0.1:0", "HEARTH_METRICS_LISTEN": "127.0.0.1:0",
            **here,
        }  # fmt: skip
        self._of_service: dict[str, dict[str, str]] = {}

    def volume(self, name: str) -> Path:
        return self._folder / "volumes" / name

    def set(self, name: str, **environ: str) -> None:
        """Give a service other values of these variables."""
        self._of_service.setdefault(name, {}).update(environ)

    def add_node(self, name: str, like: str, node_id: str) -> None:
        """Add a node to the PoP of the service `like`. Its key is one of the ring's folder."""
        service = self._services[name] = copy.deepcopy(self._services[like])
        service["environment"] |= {
            "HEARTH_NODE_ID": node_id,
            "HEARTH_NODE_CACHE_DIR": f"{HOME}/cache-of-{name}",
            "HEARTH_SERVICE_KEYS": f"{HOME}/service/keys/node-{node_id}",
        }
        self.node_ports[name] = free_port()

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
        node = f"tcp://127.0.0.1:{self.node_ports.get(name)}"
        port = str(self.http_ports.get(name, 0))
        here = {**self._here, "HEARTH_PORT": port, "HEARTH_NODE_LISTEN": node, "HEARTH_NODE_ADVERTISE": node}
        here |= self._of_service.get(name, {})
        own = {env: here.get(env, value).replace(HOME, self._view(name)) for env, value in given.items()}
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

    def url(self, gateway: str) -> str:
        return f"http://127.0.0.1:{self.http_ports[gateway]}"

    def kill(self, name: str) -> None:
        process = self._processes.pop(name)
        process.kill()
        process.wait(30)

    @property
    def is_ready(self) -> bool:
        for name, process in self._processes.items():
            assert process.poll() is None, self.log(name)
        try:
            return all(httpx.get(f"{self.url(name)}/readyz").status_code == 200 for name in GATEWAYS)
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
