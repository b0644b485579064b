"""The HTTP server under the app: uvicorn with our connections, and signals that drain before they stop.

Knows signals, not requests. A client's connection is in `http/connection.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from types import FrameType

import uvicorn

from gateway.http.connection import Connection, ConnectionServices
from gateway.http.connection_limiter import ConnectionLimiter
from gateway.http.exchange import App, Headers
from gateway.http.lingering_close import LingeringClose
from gateway.http.reading_turns import ReadingTurns
from gateway.http.write_deadline import WriteDeadline
from gateway.services import Services

log = logging.getLogger(__name__)

KEEP_ALIVE_S = 75
BACKLOG = 4096  # connections waiting to be accepted; the kernel may limit this further
STOPPED_CALLS_TIMEOUT_S = 5.0


class _BoundedServer(uvicorn.Server):
    """Stops within a bounded time, also if clients do not read their responses."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop serving. Connections that are still open after STOPPED_CALLS_TIMEOUT_S are aborted."""
        timer = asyncio.get_running_loop().call_later(STOPPED_CALLS_TIMEOUT_S, self._abort_connections)
        await super().shutdown(sockets)
        timer.cancel()

    def _abort_connections(self) -> None:
        for connection in list(self.server_state.connections):
            if isinstance(connection, Connection):
                connection.abort()


class _Server(_BoundedServer):
    """Passes signals to the Stopper; uvicorn's own handling would report a disconnect to open streams."""

    def __init__(self, config: uvicorn.Config, stopper: Stopper) -> None:
        super().__init__(config)
        self._stopper = stopper

    def handle_exit(self, sig: int, _frame: FrameType | None) -> None:
        self._stopper.stop(signal.Signals(sig).name)


class _ServerWithoutSignals(_BoundedServer):
    """A server beside the main one."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the main server."""
        yield


class Stopper:
    """Stops the process: the first request drains, a second one forces the stop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._is_requested = asyncio.Event()
        self._is_forced = asyncio.Event()

    def stop(self, reason: str) -> None:
        """Request a stop. May be called from a signal handler."""
        self._loop.call_soon_threadsafe(self._stop, reason)

    def _stop(self, reason: str) -> None:
        log.info("stop requested", extra={"reason": reason})
        (self._is_forced if self._is_requested.is_set() else self._is_requested).set()

    async def drain(self, services: Services, server: uvicorn.Server) -> None:
        """Wait for a stop request, then for the calls in flight, then stop the server."""
        await self._is_requested.wait()
        services.admission.drain()
        services.event_hub.end_streams()
        empty = asyncio.ensure_future(services.admission.wait_empty())
        forced = asyncio.ensure_future(self._is_forced.wait())
        await asyncio.wait(
            (empty, forced), timeout=services.settings.drain_timeout_s, return_when=asyncio.FIRST_COMPLETED
        )
        if not empty.done():
            services.admission.stop_all()
            await asyncio.wait((empty,), timeout=STOPPED_CALLS_TIMEOUT_S)
        for waiter in (empty, forced):
            waiter.cancel()
        server.should_exit = True


async def serve(
    app: App, services: Services, listener: socket.socket, make_error_headers: Callable[[bytes | None], Headers]
) -> None:
    """Serve on a bound socket until the process is stopped by a signal. `make_error_headers` returns the headers of
    responses that do not come from the app; see `ConnectionServices`."""
    config = _config(app, services, make_error_headers)
    stopper = Stopper()
    server = _Server(config, stopper)
    draining = asyncio.create_task(stopper.drain(services, server))
    await server.serve(sockets=[listener])
    draining.cancel()


@contextlib.asynccontextmanager
async def serving_beside(
    app: App, services: Services, listener: socket.socket, make_error_headers: Callable[[bytes | None], Headers]
) -> AsyncIterator[None]:
    """Serve another app on a bound socket while the block runs. Signals are left to `serve`."""
    server = _ServerWithoutSignals(_config(app, services, make_error_headers))
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield
    finally:
        server.should_exit = True
        await task


def _config(app: App, services: Services, make_error_headers: Callable[[bytes | None], Headers]) -> uvicorn.Config:
    settings = services.settings
    shared = ConnectionServices(
        ConnectionLimiter(
            settings.head_timeout_s, settings.max_unauthenticated_connections, settings.max_authenticated_connections
        ),
        WriteDeadline(settings.client_stall_timeout_s),
        LingeringClose(),
        ReadingTurns(),
        services.trusted_proxies,
        make_error_headers,
    )
    return uvicorn.Config(
        app,
        http=functools.partial(Connection, shared),  # type: ignore[arg-type]
        interface="asgi3",  # uvicorn takes apps that are no coroutine function for ASGI 2
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=int(2 * STOPPED_CALLS_TIMEOUT_S),
        backlog=BACKLOG,
    )
