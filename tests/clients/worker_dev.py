"""`hearth worker dev`, started as a person starts it, and stopped at the end."""

from __future__ import annotations

import contextlib
import json
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scripts.fetch_node_clients import FOLDER
from tests.end_to_end.platform import Platform

READY_TIMEOUT_S = 120


class WorkerDev:
    """A running Worker: `url`, and what the command tells."""

    def __init__(self, platform: Platform, script: Path, *arguments: str) -> None:
        command = [sys.executable, "-m", "cli.main", "worker", "dev", str(script), "--data", str(platform.data)]
        self.process = subprocess.Popen(
            [*command, "--tools", str(FOLDER), "--port", "0", "--json", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._said: list[str] = []
        self._readers = [threading.Thread(target=read, daemon=True) for read in (self._read_events, self._read_words)]
        for reader in self._readers:
            reader.start()
        self.url = ""

    def _read_events(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._events.put(json.loads(line))
        self._events.put(None)

    def _read_words(self) -> None:
        assert self.process.stderr is not None
        self._said += self.process.stderr

    def next_event(self) -> dict[str, Any]:
        event = self._events.get(timeout=READY_TIMEOUT_S)
        assert event is not None, "".join(self._said)
        return event

    def wait_ready(self) -> WorkerDev:
        event = self.next_event()
        assert event["event"] == "ready", event
        self.url = event["url"]
        return self

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(30)
        for reader in self._readers:
            reader.join(10)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()
        return status


@contextlib.contextmanager
def worker_dev(platform: Platform, script: Path, *arguments: str) -> Iterator[WorkerDev]:
    """A Worker that answers."""
    worker = WorkerDev(platform, script, *arguments)
    try:
        yield worker.wait_ready()
    finally:
        worker.stop()
