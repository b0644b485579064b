"""One node: its components and the order in which they start and stop.

Shutdown: announce draining, reject new calls, finish running ones, withdraw from Redis, close the listeners, end the
models' processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack

from engine.devices.host_memory import UNKNOWN, available_bytes
from engine.node.device_facts import DeviceMonitor
from engine.node.enrollment import keep_ring_current
from engine.node.gateway_server import GatewayServer, tls_context
from engine.node.http_app import HttpApp
from engine.node.management import ACTIONS, Management
from engine.node.peer_files import Peers
from engine.node.presence import Presence
from engine.node.served_files import ServedFiles
from engine.node.settings import NodeSettings, parse_models, parse_sleep_size
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
from engine.serving.replicas import ReplicaMemory, Replicas
from engine.tasks.registry import LOADERS
from storage.ephemeral import Ephemeral
from storage.objects import Objects
from telemetry.tracing import open_tracing
from telemetry.version import installed_version

logger = logging.getLogger(__name__)

SLEEP_RATIO = 0.5  # share of the host memory that is available at startup
USABLE_RATIO = 0.9  # share of the device's memory; activations and libraries use the rest


class Node:
    """Created inside the event loop; call `open`, then `run`."""

    def __init__(self, settings: NodeSettings, zygote: Zygote) -> None:
        """Raises CannotListen, CacheInUse, OSError or ValueError for invalid settings."""
        self._settings = settings
        self._started_s = time.monotonic()
        self._started_at_s = int(time.time())
        self._instance = secrets.token_hex(8)
        self._device = DeviceMonitor(settings.device)
        self._is_stopping = asyncio.Event()
        self._is_force_stopped = asyncio.Event()
        self._exit_stack = AsyncExitStack()
        self._objects = Objects.connect(settings.objects_url) if settings.objects_url else None
        self._cache = DiskCache(settings.cache_dir, settings.cache_max_bytes)
        self._identity = identity = settings.service_identity()
        self._ephemeral = Ephemeral.connect(settings.redis_url)
        peers = Peers(self._ephemeral, identity, settings.name, settings.pop)
        store = ModelStore(self._cache, self._objects, peers)
        wanted = parse_models(settings.models)
        self._budget_bytes = settings.memory_bytes or usable_bytes(settings, self._device.facts.memory_bytes)
        sleep_bytes = sleep_bytes_of(settings)
        self._replicas = Replicas(
            store,
            Loaders(zygote, settings, store, sleeps=sleep_bytes > 0),
            settings.max_replicas,
            wanted,
            on_change=self._changed,
            pinned=parse_models(settings.pinned),
            memory=ReplicaMemory(self._budget_bytes, settings.kv_memory_bytes, settings.kv_floor_bytes, sleep_bytes),
        )
        self._calls = Calls(self._replicas, settings.max_calls, adapters=NodeAdapters(store))
        self._tracing = open_tracing(settings.traces_url, settings.traces_ratio, "node", settings.pop, settings.name)
        self._management = Management(self._calls, self._replicas, on_change=self._changed)
        self._gateways = GatewayServer(
            self._calls, identity, settings.name, tls_context(settings), self._management.change, self._tracing
        )
        app = HttpApp(
            self._calls, self._replicas, store, identity, self.status, lambda: self.is_ready, ServedFiles(self._cache)
        )
        self._http = HttpServer(app)
        self._presence = Presence(self._ephemeral, settings.name, self.status)

    @property
    def is_ready(self) -> bool:
        return self._replicas.is_ready and not self._is_draining

    @property
    def _is_draining(self) -> bool:
        return self._calls.is_draining or self._calls.is_paused

    def status(self) -> NodeStatus:
        """Return this node's current status."""
        return NodeStatus(
            node_id=self._settings.name,
            pop=self._settings.pop,
            address=self._settings.advertise or self._gateways.address,
            http_address=self._http.address,
            protocol_version=VERSION,
            is_draining=self._is_draining,
            num_calls=len(self._calls),
            device=self._settings.device,
            device_name=self._device.facts.name,
            memory_bytes=self._device.facts.memory_bytes,
            power_w=self._device.reading.power_w,
            temperature_c=self._device.reading.temperature_c,
            budget_bytes=self._budget_bytes,
            used_bytes=self._replicas.used_bytes,
            version=installed_version(),
            started_s=self._started_at_s,
            instance=self._instance,
            replicas=self._replicas.statuses(),
            tasks=tuple(LOADERS),
            actions=ACTIONS,
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
        self._exit_stack.callback(self._management.close)
        if self._tracing is not None:
            self._exit_stack.callback(self._tracing.close)
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
            others = [
                asyncio.create_task(self._device.run()),
                asyncio.create_task(keep_ring_current(self._settings, self._identity)),
            ]
            await self._until_stopped(announcing, loading, *others)
            for task in others:
                task.cancel()
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


def usable_bytes(settings: NodeSettings, device_bytes: int) -> int:
    """Return the part of the device's memory that models may use. 0, no limit, if the memory is unknown."""
    free_bytes = device_bytes if settings.device == "cuda" else available_bytes()
    return 0 if free_bytes == UNKNOWN else int(free_bytes * USABLE_RATIO * settings.memory_share)


def sleep_bytes_of(settings: NodeSettings) -> int:
    """Return the host memory for sleeping models. On a CPU, they would take it from the models that are awake."""
    configured = parse_sleep_size(settings.sleep_size)
    if configured is not None:
        return configured
    free_bytes = available_bytes() if settings.device == "cuda" else UNKNOWN
    return 0 if free_bytes == UNKNOWN else int(free_bytes * SLEEP_RATIO * settings.memory_share)


@contextlib.contextmanager
def _naming(setting: str) -> Iterator[None]:
    """Name the setting of an address in the error that it cannot be listened on."""
    try:
        yield
    except CannotListen as error:
        raise CannotListen(f"{setting}: {error}") from error
