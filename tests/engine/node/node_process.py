"""A real node, `python -m engine`, started like its supervisor starts it: on Unix sockets, with a published test
model."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import msgspec

from engine.protocol.status import NodeStatus, ReplicaStatus
from storage.objects import Objects
from tests.engine.node.published import publish_folder
from tests.engine.node.wire_client import WireClient
from tests.service_keys import service_keys
from tests.waiting import wait_until

STORIES = "@cf/test/stories"


async def publish_stories(url: str, test_data: Path) -> str:
    """Publish the reference model to an object store and return its revision."""
    objects = Objects.connect(url)
    manifest = await publish_folder(objects, STORIES, test_data / "models/stories260K", context_window=512)
    await objects.close()
    return manifest.revision


class NodeProcess:
    """A node process in `folder`. Its children end with it, even if it is killed."""

    def __init__(self, folder: Path, objects_url: str, **environ: str) -> None:
        self.folder = folder
        self.address = f"unix://{folder}/node.sock"
        self.environ = {
            **os.environ,
            "REDIS_URL": f"unix://{folder}/no-redis.sock",
            **service_keys().environ(f"node/{environ.get('HEARTH_NODE_ID', 'n1')}"),
            "HEARTH_NODE_ID": "n1",
            "HEARTH_NODE_LISTEN": self.address,
            "HEARTH_NODE_HTTP": f"unix://{folder}/http.sock",
            "HEARTH_NODE_CACHE_DIR": str(folder / "cache"),
            "HEARTH_NODE_MODELS": STORIES,
            "HEARTH_NODE_DTYPE": "float32",
            "HEARTH_NODE_THREADS": "1",
            "OBJECTS_URL": objects_url,
            **environ,
        }
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    @property
    def log(self) -> str:
        return (self.folder / "node.log").read_text()

    def start(self) -> NodeProcess:
        with (self.folder / "node.log").open("ab") as log:
            self._process = subprocess.Popen([sys.executable, "-m", "engine"], stderr=log, env=self.environ)
        return self

    async def ready(self) -> NodeProcess:
        await wait_until(self._is_ready, deadline_s=110)
        return self

    async def _is_ready(self) -> bool:
        assert self.process.poll() is None, self.log
        try:
            return (await self.get("/readyz")).status_code == 200
        except httpx.TransportError:
            return False

    async def get(self, path: str) -> httpx.Response:
        transport = httpx.AsyncHTTPTransport(uds=f"{self.folder}/http.sock")
        async with httpx.AsyncClient(transport=transport, base_url="http://node", timeout=60) as client:
            return await client.get(path)

    async def status(self) -> NodeStatus:
        return msgspec.json.decode((await self.get("/status")).content, type=NodeStatus)

    async def replica(self) -> ReplicaStatus:
        """Return the status of the test model's replica."""
        return next(replica for replica in (await self.status()).replicas if replica.model == STORIES)

    async def connect(self) -> WireClient:
        return await WireClient.connect(self.address)

    def rank_pids(self) -> list[int]:
        """Return the process ids of the rank processes that the zygote forked."""
        (zygote,) = _children(self.process.pid)
        return _children(zygote)

    def stop(self) -> None:
        """Stop the node, in whatever state the test left it."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait(60)

    async def exit_code(self, deadline_s: float = 60) -> int:
        await wait_until(lambda: self.process.poll() is not None, deadline_s)
        return self.process.returncode


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
