"""Asynchronous client of the document worker. Starts the worker on the first file and restarts it if it exits.

The process of the client never parses a file.
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
from documents.messages import Job, Outcome
from documents.options import Options
from documents.sandbox import clock_s

log = logging.getLogger(__name__)

_GRACE_S = 5.0  # beyond a job's own time: to start, and to answer
_decode_outcome = msgspec.msgpack.Decoder(Outcome).decode


@dataclass(frozen=True)
class Limits:
    """Limits per file."""

    timeout_s: int = 20
    memory_bytes: int = 512 << 20
    max_text_bytes: int = 8 << 20


class Converter:
    """Converts at most `max_at_once` files at a time; others wait."""

    def __init__(self, limits: Limits = Limits(), max_at_once: int = 2) -> None:
        self._limits = limits
        self._turns = asyncio.Semaphore(max_at_once)
        self._process: asyncio.subprocess.Process | None = None
        self._door: socket.socket | None = None
        self._starting = asyncio.Lock()

    async def convert(self, name: str, kind: Kind, data: bytes, options: Options) -> Outcome:
        """Return the text of a file, or why it cannot be converted. Cancelling stops the conversion."""
        limits = self._limits
        job = Job(
            name, kind.reader, data, options, limits.timeout_s, limits.memory_bytes, limits.max_text_bytes
        )  # fmt: skip
        async with self._turns:
            ours, theirs = socket.socketpair()
            with ours:
                with theirs:
                    await self._hand_over(theirs)
                ours.setblocking(False)
                try:
                    async with asyncio.timeout(clock_s(limits.timeout_s) + _GRACE_S):
                        return await self._ask(ours, job)
                except TimeoutError:
                    return Outcome(refusal=f"the file takes more than {limits.timeout_s} s to read")

    async def _ask(self, ours: socket.socket, job: Job) -> Outcome:
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        frame = msgspec.msgpack.encode(job)
        answer = bytearray()
        try:
            await loop.sock_sendall(ours, len(frame).to_bytes(8, "little") + frame)
            while chunk := await loop.sock_recv(ours, 1 << 20):
                answer += chunk
        except ConnectionError:
            answer.clear()
        if len(answer) >= 8 and len(answer) == 8 + int.from_bytes(answer[:8], "little"):
            return _decode_outcome(memoryview(answer)[8:])
        if loop.time() - started_s >= job.timeout_s:
            return Outcome(refusal=f"the file takes more than {job.timeout_s} s to read")
        log.warning("a document ended the process that read it", extra={"reader": job.reader, "bytes": len(job.data)})
        return Outcome(refusal="the file cannot be read: it is damaged, or needs more memory than a file is given")

    async def _hand_over(self, theirs: socket.socket) -> None:
        """Pass a socket to the worker, and start the worker if it is not running."""
        for is_last in (False, True):
            async with self._starting:
                if self._process is None or self._process.returncode is not None:
                    await self.close()
                    await self._start()
            assert self._door is not None
            try:
                socket.send_fds(self._door, [b"j"], [theirs.fileno()])
                return
            except OSError:
                if is_last:
                    raise
                await self.close()

    async def _start(self) -> None:
        ours, theirs = socket.socketpair()
        # The environment of this process contains secrets, so only these variables are passed on.
        kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH") if name in os.environ}
        with theirs:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "documents.worker",
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env=kept | {"LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"},
            )
        self._door = ours

    async def close(self) -> None:
        """Stop the worker and running conversions."""
        process, door = self._process, self._door
        self._process = self._door = None
        if door is not None:
            door.close()
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
