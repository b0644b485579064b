"""A small pool of worker processes that render chat templates (`template_worker.py`), shared by all models.

Workers are started when they are needed and replaced when a render exceeds its limits. Methods block; they may be
called from any thread.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import socket
import subprocess
import sys
import threading
from datetime import datetime
from typing import Any

import msgspec

from engine.processes.frames import framed, receive_frame
from engine.text.template_worker import (
    MAX_RENDER_CPU_S,
    Compiled,
    Rejected,
    Rendered,
    Request,
    Response,
    SourceMissing,
)

MAX_WORKERS = 2
TIMEOUT_S = 10.0  # wall-clock limit; larger than the CPU limit to allow for a busy machine

_ENVIRONMENT = ("PATH", "PYTHONPATH", "LANG", "LC_ALL")  # nothing that is secret
_decoder: msgspec.msgpack.Decoder[Response] = msgspec.msgpack.Decoder(Response)


class TemplateRefused(Exception):
    """The model's template cannot be used, or does not accept a conversation. The text is for the caller."""


class LimitsExceeded(TemplateRefused):
    """A template took more time or memory than one render may."""


class _Worker:
    """One worker process."""

    def __init__(self) -> None:
        self._connection, theirs = socket.socketpair()
        self._connection.settimeout(TIMEOUT_S)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "engine.text.template_worker"],
                stdin=theirs.fileno(),
                env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
            )

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, request: Request) -> Response:
        """Return the worker's response. Raises LimitsExceeded, after which the worker must be closed."""
        try:
            self._connection.sendall(framed(pickle.dumps(request, pickle.HIGHEST_PROTOCOL)))
            payload = receive_frame(self._connection)
        except OSError:  # the time limit included
            payload = None
        if payload is None:
            raise LimitsExceeded("the chat template takes too long or uses too much memory")
        return _decoder.decode(payload)

    def close(self) -> None:
        self._connection.close()
        self._process.kill()
        self._process.wait()


class TemplatePool:
    """A pool of at most `max_workers` worker processes."""

    def __init__(self, max_workers: int = MAX_WORKERS) -> None:
        self._slots = threading.BoundedSemaphore(max_workers)
        self._idle: list[_Worker] = []

    def compile(self, source: str, max_cpu_s: float = MAX_RENDER_CPU_S) -> Compiled:
        """Check a template and return its parts. Raises TemplateRefused."""
        response = self._ask(source, None, datetime.now(), max_cpu_s)
        assert isinstance(response, Compiled)
        return response

    def render(self, source: str, values: dict[str, Any], now: datetime, max_cpu_s: float = MAX_RENDER_CPU_S) -> str:
        """Render a template with `values`, which are plain data. Raises TemplateRefused."""
        response = self._ask(source, values, now, max_cpu_s)
        assert isinstance(response, Rendered)
        return response.text.decode(errors="surrogatepass")

    def close(self) -> None:
        """End the idle workers."""
        while self._idle:
            self._idle.pop().close()

    def _ask(self, source: str, values: dict[str, Any] | None, now: datetime, max_cpu_s: float) -> Response:
        digest = hashlib.sha256(source.encode(errors="surrogatepass")).digest()
        request = Request(digest, None, values, now, max_cpu_s)
        with self._slots:
            worker = self._take()
            try:
                response = worker.ask(request)
                if isinstance(response, SourceMissing):
                    response = worker.ask(Request(digest, source, values, now, max_cpu_s))
            except BaseException:
                worker.close()
                raise
            if isinstance(response, Rejected) and response.is_exhausted:
                worker.close()
                raise LimitsExceeded(response.message)
            self._idle.append(worker)
        if isinstance(response, Rejected):
            raise TemplateRefused(response.message)
        return response

    def _take(self) -> _Worker:
        """Return an idle worker that is alive, or a new one."""
        while self._idle:
            worker = self._idle.pop()
            if worker.is_alive:
                return worker
            worker.close()
        return _Worker()


SHARED_POOL = TemplatePool()
