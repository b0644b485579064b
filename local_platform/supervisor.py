"""Supervision of child processes: restart them after a crash, stop them in order.

The kernel kills the children when this process ends (Linux). Each child has its own session, so Ctrl-C in the terminal
reaches only this process, which then decides the order in which the children stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from telemetry.child_process import die_with_parent

_MAX_LOG_BYTES = 16 * 1024 * 1024
_FIRST_DELAY_S = 0.2
_MAX_DELAY_S = 10.0
_STABLE_S = 30.0  # the restart delay is reset after a child has run this long


class ChildFailed(Exception):
    """A child ended before the platform was ready. The message has its name, exit status and last log line."""


@dataclass(frozen=True)
class ChildSpec:
    """A command to run. Standard output and standard error are appended to `log`."""

    name: str
    command: Sequence[str]
    environ: Mapping[str, str]
    log: Path


class Child:
    """One supervised process. `on_change` is called with a message when the process crashes and is restarted."""

    def __init__(self, spec: ChildSpec, on_change: Callable[[Child, str], None]) -> None:
        self.spec = spec
        self._on_change = on_change
        self._process: asyncio.subprocess.Process | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._is_stopping = False
        self._is_started = False

    @property
    def pid(self) -> int | None:
        """The process id, or None while no process runs."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def start(self) -> None:
        """Start the process and its supervision. Raises ChildFailed if the command cannot be executed."""
        _rotate(self.spec.log)
        await self._spawn()
        self._watcher = asyncio.create_task(self._watch(), name=f"watch {self.spec.name}")

    def mark_started(self) -> None:
        """Treat later exits as crashes to recover from, no longer as a failed start."""
        self._is_started = True

    async def failed(self) -> None:
        """Wait until the start fails, then raise ChildFailed. Returns when the child is stopped."""
        assert self._watcher is not None
        await asyncio.shield(self._watcher)

    def signal(self, number: int) -> None:
        """Send a signal to the process. The process is not restarted afterwards."""
        self._is_stopping = True
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def stop(self, grace_s: float) -> None:
        """Send SIGTERM, then SIGKILL after `grace_s` seconds. Returns when the process has ended."""
        self.signal(signal.SIGTERM)
        if self._watcher is None:
            return
        done, _ = await asyncio.wait({self._watcher}, timeout=grace_s)
        if not done:
            self.signal(signal.SIGKILL)
            await asyncio.wait({self._watcher})

    async def _spawn(self) -> None:
        descriptor = os.open(self.spec.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self.spec.command,
                env=dict(self.spec.environ),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=descriptor,
                stderr=descriptor,
                start_new_session=True,
                preexec_fn=partial(die_with_parent, os.getpid()),
            )
        except OSError as error:
            raise ChildFailed(f"{self.spec.name} cannot be started: {error}") from None
        finally:
            os.close(descriptor)

    async def _watch(self) -> None:
        delay_s = _FIRST_DELAY_S
        while True:
            assert self._process is not None
            started = time.monotonic()
            status = await self._process.wait()
            if self._is_stopping:
                return
            exit_text = (
                f"was killed by {signal.Signals(-status).name}" if status < 0 else f"exited with status {status}"
            )
            if not self._is_started and status >= 0:
                raise ChildFailed(f"{self.spec.name} {exit_text}: {last_line(self.spec.log)} (log: {self.spec.log})")
            if time.monotonic() - started >= _STABLE_S:
                delay_s = _FIRST_DELAY_S
            self._on_change(self, f"{exit_text}; restarting in {delay_s:.1f} s (log: {self.spec.log})")
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, _MAX_DELAY_S)
            if self._is_stopping:
                return
            await self._spawn()
            self._on_change(self, "restarted")


def last_line(log: Path) -> str:
    """Return the last line of a log file that is not blank, for a one-line message."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 8192))
            lines = [line.strip() for line in file.read().decode(errors="replace").splitlines()]
    except OSError:
        return "no log"
    return next((line for line in reversed(lines) if line), "no output")


def _rotate(log: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        if log.stat().st_size > _MAX_LOG_BYTES:
            log.replace(log.with_suffix(".log.1"))
