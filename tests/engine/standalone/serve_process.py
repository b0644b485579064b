"""A real standalone server, `python -m engine serve`, on a free port."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx

from tests.waiting import wait_until_blocking

START_S = 90.0


class ServeProcess:
    """A server process. `start` starts it, `ready` waits for its ready line."""

    def __init__(self, log_folder: Path, model_dir: Path | str, *flags: str) -> None:
        self._out, self._err = log_folder / "stdout", log_folder / "stderr"
        self.command = [
            sys.executable,
            "-m",
            "engine",
            "serve",
            str(model_dir),
            "--port",
            "0",
            "--threads",
            "1",
            *flags,
        ]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    @property
    def printed(self) -> str:
        return self._out.read_text()

    @property
    def stderr(self) -> str:
        return self._err.read_text()

    def start(self) -> ServeProcess:
        with self._out.open("wb") as out, self._err.open("wb") as err:
            environ = {**os.environ, "OMP_NUM_THREADS": "1"}
            self._process = subprocess.Popen(self.command, stdout=out, stderr=err, env=environ)
        return self

    def ready(self) -> ServeProcess:
        wait_until_blocking(lambda: " is ready " in self.printed or self.process.poll() is not None, START_S)
        assert self.process.poll() is None, self.stderr
        return self

    @property
    def url(self) -> str:
        found = re.search(r"http://127\.0\.0\.1:\d+", self.printed)
        assert found is not None, self.printed
        return found[0]

    def exit_code(self) -> int:
        return self.process.wait(START_S)

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        """Stop the server, in whatever state the test left it."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(10)

    def metric(self, name: str) -> float:
        """Return one sample of /metrics by name and labels, or 0 if there is none."""
        with httpx.Client(base_url=self.url, timeout=30) as client:
            text = client.get("/metrics").text
        found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    def rank_pid(self) -> int:
        """Return the process id of the process that holds the model."""
        (zygote,) = _children(self.process.pid)
        (rank,) = _children(zygote)
        return rank


@contextlib.contextmanager
def serving(log_folder: Path, model_dir: Path | str, *flags: str) -> Iterator[ServeProcess]:
    server = ServeProcess(log_folder, model_dir, *flags).start()
    try:
        yield server.ready()
    finally:
        server.stop()


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
