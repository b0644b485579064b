"""`python -m gateway`: read settings, open services, build the app, serve, and stop in good order.

On SIGTERM or SIGINT readiness goes off and new calls are refused at once; calls in flight finish, for as long as the
drain timeout allows; usage is flushed; the exit status is 0. A second signal ends calls in flight with an error event.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import signal
import socket
import sys
from types import FrameType

import uvicorn
import uvloop
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.app import build_app
from gateway.services import Services, open_services
from gateway.settings import GatewaySettings
from storage.errors import StoreError
from telemetry.logs import configure_logs
from telemetry.settings import SettingError, read_settings

log = logging.getLogger("gateway")

KEEP_ALIVE_S = 75
BACKLOG = 2048
STOPPED_CALLS_TIMEOUT_S = 5.0
EXIT_BAD_SETTING = 2
_PR_SET_PDEATHSIG = 1


class _Protocol(HttpToolsProtocol):
    """The server's own HTTP protocol, which also lets the app drop a connection whose client reads nothing."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["hearth.abort"] = self.transport.abort  # type: ignore[typeddict-unknown-key]


class _Server(uvicorn.Server):
    """Hands signals to us: the server itself would tell streams that their clients left."""

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


async def _serve(settings: GatewaySettings, listener: socket.socket) -> None:
    stopper = Stopper()
    async with open_services(settings) as services:
        config = uvicorn.Config(
            build_app(services),
            http=_Protocol,
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
        server = _Server(config, stopper)
        draining = asyncio.create_task(stopper.drain(services, server))
        gc.collect()
        gc.freeze()
        host, port = listener.getsockname()[:2]
        log.info("gateway listening", extra={"host": host, "port": port, "pop": settings.pop})
        await server.serve(sockets=[listener])
        draining.cancel()
    log.info("gateway stopped")


def _listen(settings: GatewaySettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        raise SettingError(f"HEARTH_HOST={settings.host!r} HEARTH_PORT={settings.port}: {error.strerror}") from None
    listener.set_inheritable(False)
    return listener


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() == 1:
        os.kill(os.getpid(), signal.SIGTERM)


def main() -> int:
    """The process's exit status: 0 after a drain, 2 when a setting cannot work."""
    try:
        settings = read_settings(GatewaySettings)
        configure_logs("gateway", settings.log_level)
        if settings.dies_with_parent:
            _die_with_parent()
        with _listen(settings) as listener:
            uvloop.run(_serve(settings, listener))
            return 0
    except (SettingError, ValueError, StoreError, OSError) as error:
        print(f"gateway: {error}", file=sys.stderr)  # noqa: T201 - the one line an operator must see
        return EXIT_BAD_SETTING


if __name__ == "__main__":
    sys.exit(main())
