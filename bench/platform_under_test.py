"""Start a Hearth in a temporary folder for a benchmark and call it over HTTP like a client.

The load comes from this process; figures are wall time as seen by the client. Prints nothing itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx


@dataclass(frozen=True)
class PlatformAddress:
    """Address and credentials of the platform."""

    base_url: str
    account_id: str
    api_token: str
    chat_model: str
    pids: dict[str, Any]

    @property
    def run_url(self) -> str:
        return f"{self.base_url}/accounts/{self.account_id}/ai/run/{self.chat_model}"

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.api_token}"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def platform(data: Path | None = None, nodes: int = 1) -> Iterator[PlatformAddress]:
    """Run `hearth up` until it is ready; send SIGTERM at the end."""
    with tempfile.TemporaryDirectory() as folder:
        home = data or Path(folder)
        port = free_port()
        command = [sys.executable, "-m", "cli.main", "up", "--data", str(home), "--port", str(port)]
        process = subprocess.Popen([*command, "--nodes", str(nodes)], stdout=subprocess.DEVNULL)
        try:
            yield _wait_until_ready(process, home, port)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=60)


def _wait_until_ready(process: subprocess.Popen[bytes], home: Path, port: int) -> PlatformAddress:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if process.poll() is not None:
            raise SystemExit("hearth up ended before it was ready")
        with contextlib.suppress(httpx.HTTPError, FileNotFoundError):
            if httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=1).status_code == 200:
                dev = json.loads((home / "dev.json").read_text())
                return PlatformAddress(
                    dev["base_url"], dev["account_id"], dev["api_token"], dev["chat_model"], dev["pids"]
                )
        time.sleep(0.02)
    raise SystemExit("hearth up was not ready within 60 s")


async def stream(
    client: httpx.AsyncClient, platform_address: PlatformAddress, body: dict[str, Any]
) -> AsyncIterator[tuple[float, dict[str, Any]]]:
    """Yield (seconds since the request was sent, event) for each event of one native stream."""
    started = time.perf_counter()
    async with client.stream(
        "POST", platform_address.run_url, json=body | {"stream": True}, headers=platform_address.headers
    ) as response:
        if response.status_code != 200:
            raise SystemExit(f"{response.status_code}: {(await response.aread()).decode()}")
        async for line in response.aiter_lines():
            if line and line != "data: [DONE]":
                yield time.perf_counter() - started, json.loads(line.removeprefix("data: "))


async def stream_all(
    platform_address: PlatformAddress, bodies: list[dict[str, Any]]
) -> list[list[tuple[float, dict[str, Any]]]]:
    """Send every body at once, each on its own connection."""
    limits = httpx.Limits(max_connections=len(bodies))
    async with httpx.AsyncClient(timeout=300, limits=limits) as client:

        async def one(body: dict[str, Any]) -> list[tuple[float, dict[str, Any]]]:
            return [item async for item in stream(client, platform_address, body)]

        return await asyncio.gather(*(one(body) for body in bodies))


def completion_tokens(events: list[tuple[float, dict[str, Any]]]) -> int:
    """Return the number of generated tokens in the stream's last event."""
    return int(events[-1][1]["usage"]["completion_tokens"])


def machine() -> dict[str, Any]:
    """Describe the machine."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        "?",
    )
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return {"cpu": model, "cores": os.cpu_count(), "load_1m": os.getloadavg()[0], "commit": commit}
