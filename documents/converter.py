"""Asynchronous client of the document worker. Starts the worker on the first file and restarts it if it exits.

Files are parsed only in the worker's child processes, never in the client's process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import subprocess
import sys
from dataclasses import dataclass

import msgspec

from documents.kinds import Kind
from documents.messages import ERROR_REPORT, Job, Outcome
from documents.options import Options
from documents.sandbox import clock_s

log = logging.getLogger(__name__)

_MAX_STDERR_BYTES = 2048  # largest part of standard error in one log line
_STDERR_PAUSE_S = 1.0
_GRACE_S = 5.0  # added to the time limit of a job, for process start and transfer
_decode_outcome = msgspec.msgpack.Decoder(Outcome).decode


@dataclass(frozen=True)
class Limits:
    """Limits per file."""

    timeout_s: int = 20
    memory_bytes: int = 512 << 20
    max_text_bytes: int = 8 << 20


class Converter:
    """Converts each file in its own process. The caller limits how many files are converted at the same time."""

    def __init__(self, limits: Limits = Limits()) -> None:
        self._limits = limits
        self._stderr_reader: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._channel: socket.socket | None = None
        self._starting = asyncio.Lock()

    async def convert(self, name: str, kind: Kind, data: bytes, options: Options) -> Outcome:
        """Return the text of a file, or why it cannot be converted. Cancelling stops the conversion."""
        limits = self._limits
        job = Job(
            name, kind.reader, data, options, limits.timeout_s, limits.memory_bytes, limits.max_text_bytes
        )  # fmt: skip
        local_end, remote_end = socket.socketpair()
        with local_end, remote_end:
            await self._send_socket(remote_end)
            remote_end.close()  # the worker's copy must be the last one, so that its exit ends the stream
            local_end.setblocking(False)
            return await self._run_job(local_end, job)

    async def _run_job(self, local_end: socket.socket, job: Job) -> Outcome:
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        frame = msgspec.msgpack.encode(job)
        response = bytearray()
        try:
            async with asyncio.timeout(clock_s(job.timeout_s) + _GRACE_S):
                await loop.sock_sendall(local_end, len(frame).to_bytes(8, "little") + frame)
                while chunk := await loop.sock_recv(local_end, 1 << 20):
                    response += chunk
        except (ConnectionError, TimeoutError):
            response.clear()
        if len(response) >= 8 and len(response) == 8 + int.from_bytes(response[:8], "little"):
            return _decode_outcome(memoryview(response)[8:])
        if loop.time() - started_s >= job.timeout_s:
            return Outcome(refusal=f"conversion took longer than {job.timeout_s} s")
        log.warning(
            "document reader process exited without a result", extra={"reader": job.reader, "bytes": len(job.data)}
        )
        return Outcome(refusal="the file cannot be converted: it is damaged or exceeds the memory limit")

    async def _send_socket(self, remote_end: socket.socket) -> None:
        """Pass a socket to the worker, and start the worker if it is not running."""
        for is_last in (False, True):
            async with self._starting:
                if self._process is None or self._process.returncode is not None:
                    await self.close()
                    await self._start()
            assert self._channel is not None
            try:
                socket.send_fds(self._channel, [b"j"], [remote_end.fileno()])
                return
            except OSError:
                if is_last:
                    raise
                await self.close()

    async def _start(self) -> None:
        local_end, remote_end = socket.socketpair()
        # The environment of this process contains secrets, so only these variables are passed on.
        environment = {
            name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH") if name in os.environ
        }
        with remote_end:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "documents.worker",
                stdin=remote_end.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=environment | {"LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"},
            )
        self._channel = local_end
        assert self._process.stderr is not None
        self._stderr_reader = asyncio.create_task(_log_stderr(self._process.stderr))

    async def close(self) -> None:
        """Stop the worker and running conversions."""
        process, channel = self._process, self._channel
        self._process = self._channel = None
        if channel is not None:
            channel.close()
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        if self._stderr_reader is not None:
            self._stderr_reader.cancel()
            self._stderr_reader = None


async def _log_stderr(stream: asyncio.StreamReader) -> None:
    """Log what the worker writes to stderr, at most one line per second.

    Only lines of the worker itself are quoted. Native libraries of readers write there too, and may quote the file.
    """
    while text := await stream.read(_MAX_STDERR_BYTES):
        reports = [line for line in text.split(b"\n") if line.startswith(ERROR_REPORT)]
        why = reports[0].decode("ascii", "replace") if reports else ""
        log.warning("document reader process wrote to stderr", extra={"bytes": len(text), "why": why})
        await asyncio.sleep(_STDERR_PAUSE_S)
