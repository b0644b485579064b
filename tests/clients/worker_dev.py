"""Run `hearth worker dev` as a child process."""

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
from tests.platform import Platform

READY_TIMEOUT_S = 120
_MAX_LOG_CHARACTERS = 4000  # length of each log in a failure message


class WorkerDev:
    """A running Worker, its `url` and the events that the command prints."""

    def __init__(self, platform: Platform, script: Path, *arguments: str) -> None:
        command = [sys.executable, "-m", "cli.main", "worker", "dev", str(script), "--data", str(platform.data)]
        self._platform_log = platform.data / "up.log"
        self.process = subprocess.Popen(
            [*command, "--tools", str(FOLDER), "--port", "0", "--json", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._log: list[str] = []
        self._readers = [threading.Thread(target=read, daemon=True) for read in (self._read_events, self._read_log)]
        for reader in self._readers:
            reader.start()
        self.url = ""

    def _read_events(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._events.put(json.loads(line))
        self._events.put(None)

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._log.append(line)

    def next_event(self) -> dict[str, Any]:
        event = self._events.get(timeout=READY_TIMEOUT_S)
        assert event is not None, "".join(self._log)
        return event

    def wait_ready(self) -> WorkerDev:
        event = self.next_event()
        assert event["event"] == "ready", event
        self.url = event["url"]
        return self

    def recent_logs(self) -> str:
        """Return the end of the Worker's and the platform's logs, for a failure message."""
        platform = self._platform_log.read_text(errors="replace")[-_MAX_LOG_CHARACTERS:]
        return f"log of the Worker: {''.join(self._log)[-_MAX_LOG_CHARACTERS:]}\nlog of the platform: {platform}"

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
    """Yield a Worker that is ready. Exceptions in the block get the logs as a note."""
    worker = WorkerDev(platform, script, *arguments)
    try:
        yield worker.wait_ready()
    except BaseException as error:
        worker.stop()
        error.add_note(worker.recent_logs())
        raise
    assert worker.stop() == 0, worker.recent_logs()
