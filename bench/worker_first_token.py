"""Measure the time to first token of a Worker's `env.AI.run`, relative to the same call over REST, in milliseconds.

    python -m bench.worker_first_token [--calls 300]

Runs a whole Hearth on Spark and plain workerd with the configuration of examples/worker/workerd.capnp. One keep-alive
connection each; both alternate, and each call has its own question. Goal: at most 5 ms added at the median. Needs the
packages that `make test-full` installs (scripts/fetch_node_clients.py).
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from bench.platform_under_test import PlatformAddress, free_port, machine, platform
from scripts.fetch_node_clients import PACKAGES

EXAMPLES = Path(__file__).parent.parent / "examples" / "worker"
NUM_WARM = 20


class KeepAliveConnection:
    """A keep-alive connection and the target of its requests."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        parts = urlsplit(url)
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
        self._path = parts.path or "/"
        self._headers = dict(headers) | {"content-type": "application/json"}

    def seconds_to_first_token(self, body: Mapping[str, object]) -> float:
        """Return the seconds from before the request is written to the first event; read the rest too."""
        started = time.perf_counter()
        self._connection.request("POST", self._path, json.dumps(body), self._headers)
        response = self._connection.getresponse()
        first = response.readline()
        elapsed = time.perf_counter() - started
        if response.status != 200 or not first.startswith(b"data:"):
            raise SystemExit(f"{response.status}: {first.decode()}{response.read().decode()}")
        response.read()
        return elapsed

    def close(self) -> None:
        self._connection.close()


@contextlib.contextmanager
def worker(platform_address: PlatformAddress) -> Iterator[str]:
    """Run the chat example in plain workerd; yield its address."""
    binaries = list(PACKAGES.glob("node_modules/@cloudflare/workerd-*/bin/workerd"))
    if not binaries:
        raise SystemExit("workerd is not here: run python -m scripts.fetch_node_clients")
    port = free_port()
    config = (EXAMPLES / "workerd.capnp").read_text()
    for old, new in (
        ("127.0.0.1:8787", urlsplit(platform_address.base_url).netloc),
        ("127.0.0.1:8788", f"127.0.0.1:{port}"),
        ("YOUR_TOKEN", platform_address.api_token),
        ("YOUR_ACCOUNT", platform_address.account_id),
    ):
        assert old in config, old
        config = config.replace(old, new)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.capnp").write_text(config)
        (Path(folder) / "chat.js").write_text((EXAMPLES / "chat.js").read_text())
        process = subprocess.Popen([binaries[0], "serve", str(Path(folder) / "config.capnp")])
        try:
            _wait_until_listening(port)
            yield f"http://127.0.0.1:{port}/"
        finally:
            process.terminate()
            process.wait(timeout=30)


def _wait_until_listening(port: int) -> None:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
        with contextlib.suppress(OSError):
            connection.connect()
            connection.close()
            return
        time.sleep(0.02)
    raise SystemExit("workerd does not listen")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=300)
    num_calls = parser.parse_args().calls
    plain_s: list[float] = []
    worker_s: list[float] = []
    with platform() as platform_address, worker(platform_address) as url:
        plain, through = (
            KeepAliveConnection(platform_address.run_url, platform_address.headers),
            KeepAliveConnection(url, {}),
        )
        for i in range(num_calls + NUM_WARM):
            question = f"What is {i} plus {i % 7}?"
            messages = [
                {"role": "system", "content": "You are a helpful assistant."},
                {"role": "user", "content": question},
            ]
            ways = (
                (plain_s, plain, {"messages": messages, "stream": True}),
                (worker_s, through, {"question": question}),
            )
            for times, way, body in ways if i % 2 else ways[::-1]:
                elapsed = way.seconds_to_first_token(body)
                if i >= NUM_WARM:
                    times.append(elapsed)
        plain.close()
        through.close()
    added = sorted((w - p) * 1000 for p, w in zip(plain_s, worker_s, strict=True))
    figures = {
        "plain_p50_ms": round(statistics.median(plain_s) * 1000, 2),
        "worker_p50_ms": round(statistics.median(worker_s) * 1000, 2),
        "added_p50_ms": round((statistics.median(worker_s) - statistics.median(plain_s)) * 1000, 2),
        "added_in_pairs_p50_ms": round(statistics.median(added), 2),
        "added_in_pairs_p90_ms": round(added[int(len(added) * 0.9)], 2),
    }
    print(json.dumps({"bench": "worker_first_token", "calls": num_calls, **figures, "goal_ms": 5, **machine()}))


if __name__ == "__main__":
    main()
