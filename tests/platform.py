"""A whole platform for tests, started like a user starts it, with `hearth up`.

Tests read what a user can read: `dev.json`, the command's output, the ledger, and node presence in Redis.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec

from engine.protocol.status import NodeStatus
from storage.ephemeral import Ephemeral
from tests.ports import free_port
from tests.processes import children_of

READY_DEADLINE_S = 110  # loading torch takes long if all cores and the disk are busy


def wait_for(what: str, predicate: Callable[[], Any], deadline_s: float = 90.0) -> Any:
    """Poll until `predicate` returns a true value, and return that value. A failure names `what`."""
    end = time.monotonic() + deadline_s
    while True:
        value = predicate()
        if value:
            return value
        assert time.monotonic() < end, f"not within {deadline_s} s: {what}, but {value!r}"
        time.sleep(0.02)


class Platform:
    """One running `hearth up`, and access to it."""

    def __init__(
        self,
        data: Path,
        *,
        nodes: int = 2,
        pops: str = "",
        port: int | None = None,
        environ: dict[str, str] | None = None,
    ):
        self.data = data
        self.port = port or free_port()
        self._nodes = nodes
        self._pops = pops
        self._environ = {**os.environ, **(environ or {})}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Platform:
        self.data.mkdir(parents=True, exist_ok=True)
        command = [*self._up, "--port", str(self.port), "--nodes", str(self._nodes)]
        command += ["--pops", self._pops] if self._pops else []
        with (self.data / "up.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=self._environ)
        try:
            wait_for("hearth up is ready", self._is_ready, READY_DEADLINE_S)
        except BaseException:
            self.stop()
            raise
        return self

    @property
    def _up(self) -> list[str]:
        return [sys.executable, "-m", "cli.main", "up", "--no-starter", "--data", str(self.data)]

    def run_up(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run another `hearth up` on the same folder until it exits."""
        return subprocess.run([*self._up, *arguments], capture_output=True, text=True, timeout=60, check=False)

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"hearth up ended: {(self.data / 'up.log').read_text()[-4000:]}"
        try:
            is_up = httpx.get(f"http://127.0.0.1:{self.port}/readyz", timeout=2).status_code == 200
        except httpx.HTTPError:
            return False
        return is_up and (self.data / "dev.json").exists() and self.num_hot == self._nodes * len(self._pops.split(","))

    def stop(self) -> int:
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        return self._process.wait(timeout=60)

    @property
    def dev(self) -> dict[str, Any]:
        return json.loads((self.data / "dev.json").read_text())

    @property
    def base_url(self) -> str:
        return str(self.dev["base_url"])

    @property
    def account_id(self) -> str:
        return str(self.dev["account_id"])

    @property
    def api_token(self) -> str:
        return str(self.dev["api_token"])

    @property
    def chat_model(self) -> str:
        return str(self.dev["chat_model"])

    @property
    def embed_model(self) -> str:
        return str(self.dev["embed_model"])

    def ai_url(self, account_id: str | None = None) -> str:
        return f"{self.base_url}/accounts/{account_id or self.account_id}/ai"

    def client(self, api_token: str | None = None) -> httpx.Client:
        return httpx.Client(headers={"Authorization": f"Bearer {api_token or self.api_token}"}, timeout=60)

    def hearth(self, *arguments: str) -> Any:
        """Run a `hearth` command with --json and return its output."""
        command = [sys.executable, "-m", "cli.main", *arguments, "--data", str(self.data), "--json"]
        done = subprocess.run(command, capture_output=True, env=self._environ, timeout=60, check=False)
        assert done.returncode == 0, done.stderr.decode() + done.stdout.decode()
        return json.loads(done.stdout)

    def new_account(self, name: str) -> tuple[str, str]:
        """Create an account and a token, and return (account_id, secret)."""
        account_id = self.hearth("account", "create", name)["account_id"]
        return account_id, self.hearth("token", "create", "--account", account_id, "--name", name)["secret"]

    def statuses(self) -> list[NodeStatus]:
        """Return the status that each live node has published."""
        return asyncio.run(self._read_presence())

    async def _read_presence(self) -> list[NodeStatus]:
        store = Ephemeral.connect(self.redis_url, timeout_s=5)
        try:
            return [msgspec.json.decode(raw, type=NodeStatus) for raw in (await store.present("nodes")).values()]
        finally:
            await store.close()

    @property
    def redis_url(self) -> str:
        return str(self.dev["redis_url"])

    @property
    def database_url(self) -> str:
        return str(self.dev["database_url"])

    def metric(self, name: str, model: str = "") -> float:
        """Return the sum of a gateway metric over all labels, or over those of one model."""
        lines = httpx.get(f"http://127.0.0.1:{self.port}/metrics", timeout=30).text.splitlines()
        wanted = [line for line in lines if line.split("{")[0].split(" ")[0] == name and model in line]
        return sum(float(line.rsplit(" ", 1)[1]) for line in wanted)

    @property
    def num_hot(self) -> float:
        """The number of nodes on which the chat model is ready, as seen by the gateway."""
        return self.metric("hearth_ready_replicas", self.chat_model)

    def usage_rows(self, request_id: str | None = None) -> list[dict[str, Any]]:
        """Return the usage entries in the ledger, newest last: all of them, or those of one request."""
        import sqlite3

        path = self.database_url.removeprefix("sqlite://")
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection:
            connection.row_factory = sqlite3.Row
            rows = [dict(row) for row in connection.execute("SELECT * FROM usage_entries ORDER BY started_at")]
        return [row for row in rows if request_id in (None, row["request_id"])]

    def node_pid(self, node_id: str) -> int:
        return int(self.dev["pids"]["nodes"][node_id])

    def rank_pids(self, node_id: str) -> list[int]:
        """Return the rank processes of a node."""
        children = [child for zygote in children_of(self.node_pid(node_id)) for child in children_of(zygote)]
        return [pid for pid in children if Path(f"/proc/{pid}/comm").read_text().startswith("hearth rank")]
