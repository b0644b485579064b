"""A complete platform on one machine: redis-server, gateway and nodes as child processes, stores in one directory.

Starts redis-server and the nodes at once, then the gateway; restarts processes that crash; drains all of them in order.
Decides which settings and secrets each process receives.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from local_platform.data_dir import URL_FIELDS, DataDir
from local_platform.errors import PlatformError
from local_platform.first_account import create_first_account, create_sign_in_link
from local_platform.plan import MINILM, Plan
from local_platform.readiness import is_gateway_ready, load_progress, read_nodes
from local_platform.service_keys import ensure_key
from local_platform.supervisor import Child, ChildSpec
from storage.embedded_redis import EmbeddedRedis
from storage.errors import StoreUnavailable

if TYPE_CHECKING:
    from storage.ephemeral import Ephemeral

_START_DEADLINE_S = 120.0
_GATEWAY_GRACE_S = 130.0  # longer than the default HEARTH_DRAIN_TIMEOUT_S of 120 s
_NODE_GRACE_S = 15.0
_POLL_S = 0.05


class ProgressReport(Protocol):
    """Receives the platform's progress."""

    def step(self, text: str) -> None:
        """Report what the platform waits for now."""

    def done(self, text: str) -> None:
        """Report a finished step."""

    def note(self, text: str) -> None:
        """Report an event that the user should know of."""


class EmbeddedPlatform:
    """One platform. Call `start`, then `wait_for_failure`, then `drain`."""

    def __init__(self, plan: Plan, data_dir: DataDir, progress: ProgressReport) -> None:
        """Raises OSError if the data directory is unusable, and PlatformError if a service key is."""
        self._plan = plan
        self._data_dir = data_dir
        self._progress = progress
        self._secrets = data_dir.ensure_secrets()
        self._run_dir = data_dir.run_dir()
        self._redis = EmbeddedRedis(self._run_dir)
        self._service_keys = {
            subject: str(ensure_key(data_dir.service_ring, subject, bound_pop))
            for subject, bound_pop in {
                "gateway/gateway": "",
                **{f"node/{id_}": pop for id_, pop in plan.nodes.items()},
            }.items()
        }
        self._redis_watcher: asyncio.Task[None] | None = None
        self._process_environs: dict[str, dict[str, str]] = {}
        self._nodes = {node_id: self._node_child(node_id, pop) for node_id, pop in plan.nodes.items()}
        self._chat_model = plan.models[0]
        self._gateway = self._gateway_child()
        self._current_step = ""
        self._is_ready = False

    async def start(self) -> None:
        """Start all processes and return when the platform answers calls.

        Raises PlatformError, ChildFailed or StoreUnavailable; call `drain` then, too.
        """
        self._progress.step("starting redis-server and nodes")
        self._redis.start()
        for node in self._nodes.values():
            await node.start()
        await asyncio.to_thread(self._redis.wait_ready)
        self._redis_watcher = asyncio.create_task(self._keep_redis())
        self._progress.done("redis-server is ready")
        self._progress.step("migrating the database")
        await self._prepare_database()
        self._progress.done("database is migrated")
        await self._gateway.start()
        try:
            async with asyncio.timeout(_START_DEADLINE_S):
                await self._unless_failed(self._until_ready())
        except TimeoutError:
            elapsed = f"not ready after {_START_DEADLINE_S:.0f} s"
            raise PlatformError(
                f"{elapsed}, still {self._current_step}; see the logs in {self._data_dir.logs}"
            ) from None
        self._is_ready = True
        for child in self._children():
            child.mark_started()
        self._data_dir.write_dev(self.dev())

    async def create_sign_in_link(self) -> str:
        """Return a new one-time link to the dashboard; "" if the local administrator was removed. Raises
        StoreUnavailable."""
        return await create_sign_in_link(self._urls()["DATABASE_URL"], self._secrets, self._plan.origin)

    async def wait_for_failure(self) -> None:
        """Wait until a child cannot be restarted, then raise ChildFailed."""
        await self._unless_failed(asyncio.Event().wait())

    def dev(self) -> dict[str, Any]:
        """Return the content of `dev.json`."""
        return {
            "base_url": f"{self._plan.origin}/client/v4",
            "account_id": self._secrets.account_id,
            "api_token": self._secrets.api_token,
            "chat_model": self._chat_model,
            "embed_model": MINILM,
            "pid": os.getpid(),
            "pids": {
                "redis": self._redis.pid,
                "gateway": self._gateway.pid,
                "nodes": {node_id: node.pid for node_id, node in self._nodes.items()},
            },
            **{field: self._urls()[env] for field, env in URL_FIELDS.items()},
            "settings": self._process_environs,
        }

    async def drain(self) -> None:
        """Stop all processes that were started: gateway, nodes, redis-server.

        The gateway stops first, so that running calls can finish on their nodes. Takes a bounded time.
        """
        self._is_ready = False
        self._progress.step("draining the gateway")
        await self._gateway.stop(_GATEWAY_GRACE_S)
        self._progress.step("stopping nodes")
        await asyncio.gather(*(node.stop(_NODE_GRACE_S) for node in self._nodes.values()))
        if self._redis_watcher is not None:
            self._redis_watcher.cancel()
        await asyncio.to_thread(self._redis.stop)
        if not self._run_dir.is_relative_to(self._data_dir.path):
            shutil.rmtree(self._run_dir, ignore_errors=True)

    def force_stop(self, number: int = signal.SIGTERM) -> None:
        """Send a signal to all processes during a drain. A second SIGTERM ends the gateway's drain at once."""
        for child in self._children():
            child.signal(number)

    def _children(self) -> list[Child]:
        return [self._gateway, *self._nodes.values()]

    async def _unless_failed(self, awaited: Awaitable[object]) -> None:
        """Await `awaited`, or raise ChildFailed if a child fails first."""
        jobs = [asyncio.ensure_future(awaited)]
        jobs += [asyncio.ensure_future(child.failed()) for child in self._children()]
        try:
            done, _ = await asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED)
            for job in done:
                job.result()
        finally:
            for job in jobs:
                job.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)

    async def _until_ready(self) -> None:
        from storage.ephemeral import Ephemeral

        store = Ephemeral.connect(self._redis.url)
        try:
            await self._until_models_are_ready(store)
        finally:
            await store.close()
        self._set_step("waiting for the gateway")
        while not await is_gateway_ready(self._plan.probe_host, self._plan.port):  # noqa: ASYNC110 - another process
            await asyncio.sleep(_POLL_S)
        self._progress.done("gateway is ready")

    def _set_step(self, text: str) -> None:
        self._current_step = text
        self._progress.step(text)

    async def _until_models_are_ready(self, store: Ephemeral) -> None:
        ready: frozenset[str] = frozenset()
        while len(ready) < len(self._nodes):
            waiting = ", ".join(node_id for node_id in self._nodes if node_id not in ready)
            self._set_step(f"waiting for {self._chat_model} on {waiting}")
            with contextlib.suppress(StoreUnavailable):
                now = load_progress(await read_nodes(store), list(self._nodes), self._chat_model)
                for node_id, detail in now.failed.items():
                    raise PlatformError(f"node {node_id} cannot load {self._chat_model}: {detail}")
                for node_id in now.ready - ready:
                    self._progress.done(f"node {node_id} has loaded {self._chat_model}")
                ready = now.ready
            await asyncio.sleep(_POLL_S)

    async def _prepare_database(self) -> None:
        from storage.migrate import current_revision, migrate

        url = self._urls()["DATABASE_URL"]
        is_new = await current_revision(url) is None
        await migrate(url)
        if is_new or not self._secrets.api_token:
            self._secrets = await create_first_account(url, self._secrets)
            self._data_dir.write_secrets(self._secrets)

    async def _keep_redis(self) -> None:
        """Restart redis-server after a crash. Its data may be lost, so no recovery is needed."""
        while True:
            await asyncio.sleep(0.2)
            if not self._redis.is_running:
                self._progress.note("redis-server ended; restarting it")
                try:
                    self._redis.start()
                    await asyncio.to_thread(self._redis.wait_ready)
                except (StoreUnavailable, OSError) as error:
                    self._progress.note(str(error))
                    await asyncio.sleep(2.0)
                self._update_dev()

    def _on_change(self, child: Child, text: str) -> None:
        self._progress.note(f"{child.spec.name} {text}")
        self._update_dev()

    def _update_dev(self) -> None:
        if self._is_ready:
            self._data_dir.write_dev(self.dev())

    def _node_child(self, node_id: str, pop: str) -> Child:
        environ = {
            "HEARTH_NODE_ID": node_id,
            "HEARTH_POP": pop,
            "HEARTH_NODE_LISTEN": f"unix://{self._run_dir / f'node-{node_id}.sock'}",
            "HEARTH_NODE_HTTP": f"unix://{self._run_dir / f'node-{node_id}.http.sock'}",
            "HEARTH_NODE_CACHE_DIR": str(self._data_dir.path / "cache" / node_id),
            "HEARTH_SERVICE_KEYS": self._service_keys[f"node/{node_id}"],
            "HEARTH_NODE_MODELS": ",".join(self._plan.models),
            "HEARTH_NODE_MEMORY_SHARE": os.environ.get("HEARTH_NODE_MEMORY_SHARE", str(self._plan.memory_share)),
        }
        shared = {name: self._urls()[name] for name in ("REDIS_URL", "OBJECTS_URL", "HEARTH_SERVICE_RING")}
        return self._process("engine", node_id, f"node-{node_id}", shared, environ, ())

    def _gateway_child(self) -> Child:
        environ = {
            "HEARTH_HOST": self._plan.host,
            "HEARTH_PORT": str(self._plan.port),
            "HEARTH_CORS_ORIGINS": os.environ.get("HEARTH_CORS_ORIGINS", self._plan.browser_origins),
            "HEARTH_DEFAULT_MODEL": os.environ.get("HEARTH_DEFAULT_MODEL", self._chat_model),
            "HEARTH_POP": next(iter(self._plan.nodes.values())),
            "HEARTH_SERVICE_KEYS": self._service_keys["gateway/gateway"],
        }
        return self._process("gateway", "gateway", "gateway", self._urls(), environ, tuple(self._secrets.keys))

    def _process(
        self,
        module: str,
        name: str,
        log: str,
        shared: Mapping[str, str],
        own: Mapping[str, str],
        keys: tuple[str, ...],
    ) -> Child:
        """Return a child that runs `python -m module` and receives only the stores and secrets that it needs."""
        withheld = {*self._secrets.keys, *self._urls()}
        inherited = {env: value for env, value in os.environ.items() if env not in withheld}
        self._process_environs[name] = dict(own)
        spec = ChildSpec(
            name=log.replace("-", " ", 1),
            command=(sys.executable, "-m", module),
            environ={
                **inherited,
                **shared,
                **{env: self._secrets.keys[env] for env in keys},
                **own,
            },
            log=self._data_dir.logs / f"{log}.log",
        )
        return Child(spec, self._on_change)

    def _urls(self) -> dict[str, str]:
        return {**self._data_dir.environ(), "REDIS_URL": self._redis.url}
