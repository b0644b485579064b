"""`python -m gateway`: read settings, open services, build the app, serve, and shut down gracefully.

On SIGTERM or SIGINT the gateway becomes unready and refuses new calls; calls in flight finish within the drain timeout,
usage is flushed, and the exit status is 0. A second signal ends the calls in flight with an error event.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import resource
import signal
import socket
import sys
from collections.abc import Mapping

import uvloop

from gateway.app import build_app, build_metrics_app, error_headers
from gateway.call import Endpoint
from gateway.inference.responses import RESPONSES
from gateway.inference.run import RUN
from gateway.jobs.batch_worker import batch_worker
from gateway.jobs.publication_worker import publication_worker
from gateway.pipeline import run_item
from gateway.server import BACKLOG, serve, serving_beside
from gateway.services import open_services
from gateway.settings import GatewaySettings, parse_listen
from storage.errors import StoreError
from telemetry.child_process import die_with_parent
from telemetry.logs import configure_logs
from telemetry.settings import SettingError, read_settings
from tenants.jobs.batches import Kind

log = logging.getLogger("gateway")

EXIT_BAD_SETTING = 2
GC_THRESHOLD = (20_000, 20, 50)  # calls create few reference cycles
# After syncing the spool, a thread waits this long for the interpreter lock, and calls wait with it. Default: 5 ms.
SWITCH_INTERVAL_S = 0.0005
MAX_SYSTEM_BUFFER_BYTES = 64 * 1024  # unsent data per connection
MAX_OPEN_FILES = 65_536  # one file per connection; bounded by the hard limit


def settle_interpreter() -> None:
    """Tune garbage collection and thread switching, after all long-lived objects exist."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLD)
    sys.setswitchinterval(SWITCH_INTERVAL_S)


async def _run(settings: GatewaySettings, listener: socket.socket, metrics_listener: socket.socket | None) -> None:
    endpoints: Mapping[Kind, Endpoint] = {"run": RUN, "response": RESPONSES}
    async with (
        open_services(settings) as services,
        batch_worker(services, endpoints, run_item),
        publication_worker(services),
    ):
        app = build_app(services)
        settle_interpreter()
        listener.listen(BACKLOG)  # connections succeed before the log line below appears
        host, port = listener.getsockname()[:2]
        headers = error_headers(settings)
        async with contextlib.AsyncExitStack() as stack:
            if metrics_listener is not None:
                await stack.enter_async_context(
                    serving_beside(build_metrics_app(services), services, metrics_listener, headers)
                )
                log.info("metrics listening", extra={"port": metrics_listener.getsockname()[1]})
            log.info("gateway listening", extra={"host": host, "port": port, "pop": settings.pop})
            await serve(app, services, listener, headers)
    log.info("gateway stopped")


def _listen(host: str, port: int, shown: str) -> socket.socket:
    """Return a bound socket. Raises SettingError with the settings in `shown`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # The connections inherit this: the system buffers little for a client that does not read, so that the gateway
    # notices. Data on its way to the client is not limited. Authenticated connections have the system's default.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, MAX_SYSTEM_BUFFER_BYTES)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise SettingError(f"{shown}: {error.strerror}") from None
    return listener


def _listen_for_metrics(settings: GatewaySettings) -> socket.socket | None:
    if not settings.metrics_listen:
        return None
    host, port = parse_listen(settings.metrics_listen)
    return _listen(host, port, f"HEARTH_METRICS_LISTEN={settings.metrics_listen!r}")


def _raise_open_files() -> None:
    """Raise the limit of open files: without a free descriptor, connections are dropped silently."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def main() -> int:
    """Return the exit status: 0 after a drain, 2 for an invalid setting."""
    try:
        settings = read_settings(GatewaySettings)
        configure_logs("gateway", settings.log_level)
        if settings.dies_with_parent:
            die_with_parent(number=signal.SIGTERM)  # SIGTERM drains the gateway
        _raise_open_files()
        shown = f"HEARTH_HOST={settings.host!r} HEARTH_PORT={settings.port}"
        with _listen(settings.host, settings.port, shown) as listener:
            metrics_listener = _listen_for_metrics(settings)
            with metrics_listener or contextlib.nullcontext():
                uvloop.run(_run(settings, listener, metrics_listener))
    except (SettingError, ValueError, StoreError, OSError) as error:
        print(f"gateway: {error}", file=sys.stderr)  # noqa: T201 - the one line an operator must see
        return EXIT_BAD_SETTING
    return 0


if __name__ == "__main__":
    sys.exit(main())
