"""The HTTP server under the app: uvicorn, with our connections and with signals that drain before they end.

Knows signals, not requests; one client's connection is `http/connection.py`.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import signal
from types import FrameType
from typing import Any

import uvicorn

from gateway.http.connection import Connection
from gateway.http.connection_limiter import ConnectionLimiter
from gateway.http.exchange import App
from gateway.services import Services

log = logging.getLogger(__name__)

KEEP_ALIVE_S = 75
BACKLOG = 4096  # connections that wait to be accepted; the kernel's own bound may be lower
STOPPED_CALLS_TIMEOUT_S = 5.0


class _Server(uvicorn.Server):
    """Hands signals to the Stopper: the server itself would tell streams that their clients left."""

    def __init__(self, config: uvicorn.Config, stopper: Stopper) -> None:
        super().__init__(config)
        self._stopper = stopper

    def handle_exit(self, sig: int, _frame: FrameType | None) -> None:
        self._stopper.stop(signal.Signals(sig).name)


class Stopper:
    """Brings the process to its end: once asked it drains, asked again it hurries."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._asked = asyncio.Event()
        self._hurried = asyncio.Event()

    def stop(self, why: str) -> None:
        """Safe to call from a signal handler."""
        self._loop.call_soon_threadsafe(self._stop, why)

    def _stop(self, why: str) -> None:
        log.info("asked to stop", extra={"why": why})
        (self._hurried if self._asked.is_set() else self._asked).set()

    async def drain(self, services: Services, server: uvicorn.Server) -> None:
        """Wait to be asked, then for calls in flight, then let the server end."""
        await self._asked.wait()
        services.admission.drain()
        empty = asyncio.ensure_future(services.admission.wait_empty())
        hurried = asyncio.ensure_future(self._hurried.wait())
        await asyncio.wait(
            (empty, hurried), timeout=services.settings.drain_timeout_s, return_when=asyncio.FIRST_COMPLETED
        )
        if not empty.done():
            services.admission.stop_all()
            await asyncio.wait((empty,), timeout=STOPPED_CALLS_TIMEOUT_S)
        for waiter in (empty, hurried):
            waiter.cancel()
        server.should_exit = True


async def serve(app: App, services: Services, listener: Any) -> None:
    """Serve on a bound socket until a signal has been obeyed."""
    settings = services.settings
    limiter = ConnectionLimiter(settings.head_timeout_s, settings.max_unauthenticated_connections)
    config = uvicorn.Config(
        app,
        http=functools.partial(Connection, limiter),  # type: ignore[arg-type]
        interface="asgi3",  # else guessed: what is no coroutine function is taken for the older kind
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=int(STOPPED_CALLS_TIMEOUT_S),
        backlog=BACKLOG,
    )
    stopper = Stopper()
    server = _Server(config, stopper)
    draining = asyncio.create_task(stopper.drain(services, server))
    await server.serve(sockets=[listener])
    draining.cancel()
