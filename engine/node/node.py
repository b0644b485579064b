"""One node: its components and the order in which they start and stop.

Shutdown: announce draining, reject new calls, finish running ones, withdraw from Redis, close the listeners, end the
models' processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack

from engine.node.gateway_server import GatewayServer, tls_context
from engine.node.http_app import HttpApp
from engine.node.presence import Presence
from engine.node.settings import NodeSettings, parse_models
from engine.processes.zygote import Zygote
from engine.protocol.status import NodeStatus
from engine.protocol.wire import VERSION
from engine.serving.adapters import NodeAdapters
from engine.serving.addresses import parse_address, parse_http_address
from engine.serving.calls import Calls
from engine.serving.disk_cache import DiskCache
from engine.serving.http_server import CannotListen, HttpServer
from engine.serving.loaders import Loaders
from engine.serving.model_store import ModelStore
from engine.serving.replicas import Replicas
from engine.tasks.registry import LOADERS
from storage.ephemeral import Ephemeral
from storage.objects import Objects

logger = logging.getLogger(__name__)


class Node:
    """Created inside the event loop; call `open`, then `run`."""

    def __init__(self, settings: NodeSettings, zygote: Zygote) -> None:
        """Raises CannotListen, CacheInUse, OSError or ValueError for invalid settings."""
        self._settings = settings
        self._started_s = time.monotonic()
        self._is_stopping = asyncio.Event()
        self._is_force_stopped = asyncio.Event()
        self._exit_stack = AsyncExitStack()
        self._objects = Objects.connect(settings.objects_url) if settings.objects_url else None
        self._cache = DiskCache(settings.cache_dir, settings.cache_max_bytes)
        store = ModelStore(self._cache, self._objects)
        wanted = parse_models(settings.models)
        self._replicas = Replicas(
            store, Loaders(zygote, settings, store), settings.max_replicas, wanted, on_change=self._changed
        )
        self._calls = Calls(self._replicas, settings.max_calls, adapters=NodeAdapters(store))
        identity = settings.service_identity()
        self._gateways = GatewayServer(self._calls, identity, settings.name, tls_context(settings))
        app = HttpApp(self._calls, self._replicas, store, identity, self.status, lambda: self.is_ready)
        self._http = HttpServer(app)
        self._ephemeral = Ephemeral.connect(settings.redis_url)
        self._presence = Presence(self._ephemeral, settings.name, self.status)

    @property
    def is_ready(self) -> bool:
        return self._replicas.is_ready and not self._calls.is_draining

    def status(self) -> NodeStatus:
        """Return this node's current status."""
        return NodeStatus(
            node_id=self._settings.name,
            pop=self._settings.pop,
            address=self._settings.advertise or self._gateways.address,
            http_address=self._http.address,
            protocol_version=VERSION,
            is_draining=self._calls.is_draining,
            num_calls=len(self._calls),
            device=self._settings.device,
            replicas=self._replicas.statuses(),
            tasks=tuple(LOADERS),
        )

    def stop(self) -> None:
        """Drain and stop; a second call stops without waiting for running calls."""
        (self._is_force_stopped if self._is_stopping.is_set() else self._is_stopping).set()

    async def open(self) -> None:
        """Start listening. Raises CannotListen after closing everything that was opened."""
        self._exit_stack.callback(self._cache.close)
        if self._objects is not None:
            self._exit_stack.push_async_callback(self._objects.close)
        self._exit_stack.push_async_callback(self._ephemeral.close)
        self._exit_stack.push_async_callback(self._replicas.close)
        try:
            with _naming("HEARTH_NODE_LISTEN"):
                await self._gateways.open(parse_address(self._settings.listen))
            self._exit_stack.push_async_callback(self._gateways.close)
            with _naming("HEARTH_NODE_HTTP"):
                await self._http.open(parse_http_address(self._settings.http))
            self._exit_stack.push_async_callback(self._http.close)
        except BaseException:
            await self._exit_stack.aclose()
            raise
        logger.info("node listens", extra={"address": self._gateways.address, "http": self._http.address})

    async def run(self) -> None:
        """Run until stopped and drained, then close everything."""
        async with self._exit_stack:
            announcing = asyncio.create_task(self._presence.run())
            loading = asyncio.create_task(self._replicas.keep_ready())
            await self._until_stopped(announcing, loading)
            await self._drain(loading)
            announcing.cancel()
            await asyncio.gather(announcing, return_exceptions=True)
            await self._presence.withdraw()

    async def _until_stopped(self, *background: asyncio.Task[None]) -> None:
        """Wait until stopped. A background job that ends is a defect: its error ends the node, and the supervisor
        restarts it."""
        stopping = asyncio.create_task(self._is_stopping.wait())
        done, _ = await asyncio.wait({stopping, *background}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    async def _drain(self, loading: asyncio.Task[None]) -> None:
        logger.info("draining", extra={"num_calls": len(self._calls)})
        draining = asyncio.create_task(self._calls.drain(self._settings.drain_timeout_s))
        await asyncio.sleep(0)  # the next announcement reports draining
        self._presence.changed()
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)
        self._replicas.cancel_idle_loading()
        force_stop = asyncio.create_task(self._is_force_stopped.wait())
        await asyncio.wait({draining, force_stop}, return_when=asyncio.FIRST_COMPLETED)
        if not draining.done():
            logger.warning("cancelling calls", extra={"num_calls": len(self._calls)})
            self._calls.cancel_all()
        await draining
        force_stop.cancel()
        logger.info("drained", extra={"uptime_s": round(time.monotonic() - self._started_s)})

    def _changed(self) -> None:
        self._presence.changed()


@contextlib.contextmanager
def _naming(setting: str) -> Iterator[None]:
    """Name the setting of an address in the error that it cannot be listened on."""
    try:
        yield
    except CannotListen as error:
        raise CannotListen(f"{setting}: {error}") from error
