"""`python -m engine serve` as a process of its own, with clients on other cores. For parts `http` and `start`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from bench.device import figures
from bench.engine_serve import StreamResult, ask
from bench.platform_under_test import free_port

MODEL = "random"
_WEIGHT_BYTES = 16_100_000_000
_RESERVED_BYTES = 9 << 30  # GPU memory for a step, libraries and graphs, beside the weights
_READY = "is ready after"
_PHASE_MESSAGES = ("warm", "loaded")  # log messages: the zygote after its imports, and the rank after the load
_STOP_S = 10.0


class NotServed(Exception):
    """The server ended or was not ready in time. The message has the end of its output."""


@dataclass(frozen=True)
class Served:
    """A server that is ready. `started_s` is when its process was started, on the clock of `perf_counter`. `phases` are
    the seconds of each part of its start, if it logs them (`--log-level info`)."""

    url: urllib.parse.SplitResult
    process: psutil.Process
    started_s: float
    ready_s: float
    phases: dict[str, float]

    def cpu_s(self) -> float:
        """Return the CPU seconds of the server's processes."""
        total = 0.0
        for process in (self.process, *self.process.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                total += times.user + times.system
        return total

    async def ask(
        self, prompt: list[int], max_tokens: int, response: StreamResult | None = None, **parameters: Any
    ) -> StreamResult:
        body = {
            "model": MODEL, "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "stream": True,
            "stream_options": {"include_usage": True}, **parameters,
        }  # fmt: skip
        return await ask(self.url, body, "", response)


@contextlib.contextmanager
def served(
    folder: Path, device: str, *, max_model_len: int, limit_s: float, flags: tuple[str, ...]
) -> Iterator[Served]:
    """Serve a folder until the context ends. Raises NotServed."""
    cores = sorted(os.sched_getaffinity(0))
    server_cores = cores[: max(1, len(cores) // 2)]
    kv_bytes = max(figures.free_bytes() - _WEIGHT_BYTES - _RESERVED_BYTES, 1 << 30) if device == "cuda" else 64 << 20
    port = free_port()
    command = [
        sys.executable, "-m", "engine", "serve", str(folder), "--device", device, "--port", str(port),
        "--served-model-name", MODEL, "--dtype", "bfloat16", "--max-model-len", str(max_model_len),
        "--kv-memory", str(kv_bytes), "--drain-timeout", "0", *flags,
    ]  # fmt: skip
    with tempfile.TemporaryFile("w+") as output:
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        os.sched_setaffinity(process.pid, server_cores)
        os.sched_setaffinity(0, cores[len(server_cores) :] or cores)
        try:
            ready_s, text = _wait_until_ready(process, output, started, limit_s)
            url = urllib.parse.urlsplit(f"http://127.0.0.1:{port}")
            yield Served(url, psutil.Process(process.pid), started, ready_s, phases_of(text))
        finally:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_S)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            os.sched_setaffinity(0, cores)


def phases_of(text: str) -> dict[str, float]:
    """Return the seconds that the log of a server has for each phase of its start, by name."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        entry = json.loads(line) if line.startswith("{") and line.endswith("}") else {}
        if entry.get("message") in _PHASE_MESSAGES:
            found |= {name: value for name, value in entry.items() if name.endswith("_s")}
    return found


def _wait_until_ready(
    process: subprocess.Popen[bytes], output: Any, started: float, limit_s: float
) -> tuple[float, str]:
    """Return the seconds until the server is ready, and its output."""
    while time.perf_counter() - started < limit_s:
        output.seek(0)
        text = output.read()
        if _READY in text:
            return time.perf_counter() - started, text
        if process.poll() is not None:
            raise NotServed(f"the server ended with status {process.returncode}: {text[-2000:]}")
        time.sleep(0.01)
    raise NotServed(f"the server was not ready within {limit_s:.0f} s: {text[-2000:]}")


def random_prompt(length: int, seed: int, vocab_size: int) -> list[int]:
    """Return token ids that are not single bytes."""
    choose = random.Random(seed)
    return [choose.randrange(300, vocab_size) for _ in range(length)]


def vocab_size_of(folder: Path) -> int:
    return int(json.loads((folder / "config.json").read_text())["vocab_size"])


def first_token_s(server: Served, prompt: list[int]) -> float:
    """Return seconds from sending a request to its first token."""
    return asyncio.run(server.ask(prompt, 2, temperature=0.0)).chunk_s[0]
