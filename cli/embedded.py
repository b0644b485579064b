"""EmbeddedPlatform: a whole platform on one machine, out of child processes and the stores in one folder.

Starts redis-server, nodes and gateway so that the slow ones wait for nobody, keeps them alive, and drains them in
order. Knows which process needs which settings; not what is printed, and not how a command line is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cli.data_dir import URL_FIELDS, DataDir, Secrets
from cli.output import CommandFailed
from cli.progress import Progress
from cli.readiness import is_gateway_ready, progress_of, read_nodes
from cli.service_files import ensure_key
from cli.supervisor import Child, ChildSpec
from storage.embedded_redis import EmbeddedRedis
from storage.errors import StoreUnavailable

if TYPE_CHECKING:
    from storage.ephemeral import Ephemeral

CHAT_MODEL = "@cf/hearth/spark"
EMBED_MODEL = "@cf/hearth/minilm"
_START_DEADLINE_S = 120.0
_GATEWAY_GRACE_S = 130.0  # its own drain is bounded by HEARTH_DRAIN_TIMEOUT_S, 120 s unless set
_NODE_GRACE_S = 15.0
_POLL_S = 0.05


@dataclass(frozen=True)
class Plan:
    """What to start. `nodes` maps node id -> PoP, in order; the gateway is in the first one's PoP."""

    host: str
    port: int
    nodes: Mapping[str, str]

    @property
    def origin(self) -> str:
        """Where clients on this machine find the gateway."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(self.host, self.host)  # noqa: S104
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    @property
    def probe_host(self) -> str:
        return self.origin.removeprefix("http://").rpartition(":")[0].strip("[]")


class EmbeddedPlatform:
    """One running platform. `start`, then wait for `crashed` or a reason to stop, then `drain`."""

    def __init__(self, plan: Plan, data_dir: DataDir, progress: Progress) -> None:
        """Raises OSError when the folder cannot be used."""
        self._plan = plan
        self._data_dir = data_dir
        self._progress = progress
        self._secrets = data_dir.ensure_secrets()
        self._run_dir = data_dir.run_dir()
        self._redis = EmbeddedRedis(self._run_dir)
        self._service_keys = {
            subject: str(ensure_key(data_dir.service_ring, subject, place))
            for subject, place in {
                "gateway/gateway": "",
                **{f"node/{id_}": pop for id_, pop in plan.nodes.items()},
            }.items()
        }
        self._redis_watcher: asyncio.Task[None] | None = None
        self._own_environs: dict[str, dict[str, str]] = {}
        self._nodes = {node_id: self._node_child(node_id, pop) for node_id, pop in plan.nodes.items()}
        self._gateway = self._gateway_child()
        # Nodes load the models of this setting, the first one first; that is the one people are told to call.
        models = os.environ.get("HEARTH_NODE_MODELS", "").split(",")
        self._chat_model = models[0].strip() or CHAT_MODEL
        self._waiting_for = ""
        self._is_ready = False

    async def start(self) -> None:
        """Returns when calls are answered. Raises CommandFailed, ChildFailed or StoreUnavailable; then drain."""
        self._progress.step("starting redis-server and nodes")
        self._redis.start()
        for node in self._nodes.values():
            await node.start()
        await asyncio.to_thread(self._redis.wait_ready)
        self._redis_watcher = asyncio.create_task(self._keep_redis())
        self._progress.done("redis-server answers")
        self._progress.step("migrating the database")
        await self._prepare_database()
        self._progress.done("database is migrated")
        await self._gateway.start()
        try:
            async with asyncio.timeout(_START_DEADLINE_S):
                await self._unless_failed(self._until_ready())
        except TimeoutError:
            limit = f"not ready after {_START_DEADLINE_S:.0f} s"
            raise CommandFailed(f"{limit}, still {self._waiting_for}; logs are in {self._data_dir.logs}") from None
        self._is_ready = True
        for child in self._children():
            child.settle()
        self._data_dir.write_dev(self.dev())

    async def crashed(self) -> None:
        """Wait until supervision gives up on a child; raises ChildFailed."""
        await self._unless_failed(asyncio.Event().wait())

    def dev(self) -> dict[str, Any]:
        """What dev.json holds."""
        return {
            "base_url": f"{self._plan.origin}/client/v4",
            "account_id": self._secrets.account_id,
            "api_token": self._secrets.api_token,
            "chat_model": self._chat_model,
            "embed_model": EMBED_MODEL,
            "pid": os.getpid(),
            "pids": {
                "redis": self._redis.pid,
                "gateway": self._gateway.pid,
                "nodes": {node_id: node.pid for node_id, node in self._nodes.items()},
            },
            **{field: self._urls()[env] for field, env in URL_FIELDS.items()},
            "settings": self._own_environs,
        }

    async def drain(self) -> None:
        """Stop everything, whatever was started: gateway first, so that calls in flight still have their nodes, then
        nodes, then redis-server. Bounded."""
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

    def hurry(self, number: int = signal.SIGTERM) -> None:
        """Press on with a drain: the gateway takes a second SIGTERM as "now", SIGKILL ends everything."""
        for child in self._children():
            child.signal(number)

    def _children(self) -> list[Child]:
        return [self._gateway, *self._nodes.values()]

    async def _unless_failed(self, awaited: Awaitable[object]) -> None:
        """Await something, or raise what a child's supervision raised first."""
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
            await self._until_models_are_hot(store)
        finally:
            await store.close()
        self._await("waiting for the gateway")
        while not await is_gateway_ready(self._plan.probe_host, self._plan.port):  # noqa: ASYNC110 - another process
            await asyncio.sleep(_POLL_S)
        self._progress.done("gateway is ready")

    def _await(self, what: str) -> None:
        self._waiting_for = what
        self._progress.step(what)

    async def _until_models_are_hot(self, store: Ephemeral) -> None:
        hot: frozenset[str] = frozenset()
        while len(hot) < len(self._nodes):
            waiting = ", ".join(node_id for node_id in self._nodes if node_id not in hot)
            self._await(f"waiting for {self._chat_model} on {waiting}")
            with contextlib.suppress(StoreUnavailable):
                now = progress_of(await read_nodes(store), list(self._nodes), self._chat_model)
                for node_id, detail in now.failed.items():
                    raise CommandFailed(f"node {node_id} cannot load {self._chat_model}: {detail}")
                for node_id in now.hot - hot:
                    self._progress.done(f"node {node_id} holds {self._chat_model}")
                hot = now.hot
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
        """redis-server holds only what may be lost, so a crashed one is simply started again."""
        while True:
            await asyncio.sleep(0.2)
            if not self._redis.is_running:
                self._progress.note("redis-server ended; starting it again")
                try:
                    self._redis.start()
                    await asyncio.to_thread(self._redis.wait_ready)
                except (StoreUnavailable, OSError) as error:
                    self._progress.note(str(error))
                    await asyncio.sleep(2.0)
                self._write_dev_again()

    def _changed(self, child: Child, what: str) -> None:
        self._progress.note(f"{child.spec.name} {what}")
        self._write_dev_again()

    def _write_dev_again(self) -> None:
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
        }
        shared = {name: self._urls()[name] for name in ("REDIS_URL", "OBJECTS_URL", "HEARTH_SERVICE_RING")}
        return self._process("engine", node_id, f"node-{node_id}", shared, environ, ())

    def _gateway_child(self) -> Child:
        environ = {
            "HEARTH_HOST": self._plan.host,
            "HEARTH_PORT": str(self._plan.port),
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
        """A child that runs `python -m module`, with those stores and secrets that it needs and no others."""
        withheld = {*self._secrets.keys, *self._urls()}
        inherited = {env: value for env, value in os.environ.items() if env not in withheld}
        self._own_environs[name] = dict(own)
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
        return Child(spec, self._changed)

    def _urls(self) -> dict[str, str]:
        return {**self._data_dir.environ(), "REDIS_URL": self._redis.url}


async def create_first_account(database_url: str, secrets: Secrets) -> Secrets:
    """Create the account and the token that the ready curl uses; an account id that was known before is kept."""
    from storage.database import Database
    from tenants import accounts
    from tenants.credentials import api_tokens, scopes

    pepper = bytes.fromhex(secrets.keys["HEARTH_TOKEN_PEPPER"])
    database = Database.connect(database_url)
    try:
        account_id = secrets.account_id
        if not account_id or await accounts.find(database, account_id) is None:
            account_id = (await accounts.create(database, "default", account_id or None)).account_id
        created = await api_tokens.create(database, pepper, account_id, "hearth up", scopes.WORKERS_AI_GROUPS)
        return Secrets(secrets.keys, account_id, created.secret)
    finally:
        await database.close()
