"""The process that runs one Worker in workerd: its Node.js and npm packages, its configuration, its events.

`workerd/dev.mjs` runs the Worker. It receives its configuration, with the API token, through a pipe and not through its
command line, which other users of the machine could read.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import urlsplit

from telemetry.child_process import die_with_parent
from worker_runtime.config import WorkerConfig
from worker_runtime.node_js import Node, ensure_node, ensure_packages

WORKERD_FOLDER = Path(__file__).parent / "workerd"
_STOP_TIMEOUT_S = 10.0
# Exit statuses after a stop request: by dev.mjs itself, by the signal, or by miniflare's signal handler.
STOPPED_STATUSES = (0, -signal.SIGTERM, -signal.SIGINT, 128 + signal.SIGTERM, 128 + signal.SIGINT)


@dataclass(frozen=True)
class GatewayTarget:
    """The gateway that the AI binding calls, and its credential."""

    url: str
    account_id: str
    api_token: str


def install_tools(folder: Path, log: Callable[[str], None]) -> tuple[Node, Path]:
    """Install Node.js and the npm packages into `folder` if missing, and return Node.js and the path of `dev.mjs`.

    Raises ToolsMissing and OSError.
    """
    packages = folder / "packages"
    script = packages / "dev.mjs"
    node = ensure_node(folder / "node", log)
    ensure_packages(node, WORKERD_FOLDER, packages, log)
    shutil.copyfile(WORKERD_FOLDER / script.name, script)  # beside node_modules, where its imports are resolved
    return node, script


def dev_options(
    worker: WorkerConfig, gateway: GatewayTarget, script: Path, host: str, port: int, state: Path
) -> dict[str, Any]:
    """Return the configuration that `dev.mjs` reads."""
    headers = {"authorization": f"Bearer {gateway.api_token}"}
    if gateway.account_id:
        headers["x-hearth-account"] = gateway.account_id
    parts = urlsplit(gateway.url)
    return {
        "script": str(script),
        "name": worker.name,
        "host": host,
        "port": port,
        "state": str(state),
        "compatibility_date": worker.compatibility_date,
        "compatibility_flags": list(worker.compatibility_flags),
        "vars": dict(worker.variables),
        "ai": [worker.ai],
        "kv": list(worker.kv),
        "d1": list(worker.d1),
        "r2": list(worker.r2),
        "gateway": {"url": f"{parts.scheme}://{parts.netloc}", "headers": headers},
    }


@contextlib.contextmanager
def running_dev_server(node: Node, script: Path, options: Mapping[str, Any]) -> Iterator[subprocess.Popen[str]]:
    """Run `dev.mjs` and yield its process, whose standard output has one JSON event per line.

    The child process is stopped when the context ends, at SIGTERM, and when this process dies.
    """
    process = subprocess.Popen(
        [str(node.command), str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=node.environ(),
        text=True,
        preexec_fn=partial(die_with_parent, os.getpid(), signal.SIGTERM),
    )

    def terminate(_number: int, _frame: FrameType | None) -> None:
        process.terminate()

    signal.signal(signal.SIGTERM, terminate)
    try:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin:
            process.stdin.write(json.dumps(options))
        yield process
    finally:
        process.terminate()
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
