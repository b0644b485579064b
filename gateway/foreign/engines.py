"""ForeignEngines: the registered engines of this gateway, kept up to date with the database, as nodes of the snapshot.

Each gateway connects to every engine itself. While the database is unavailable, the last known engines remain.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from typing import Any

from catalog.foreign_engines import EngineSpec, StoredEngine, list_engines
from catalog.registry import Registry
from catalog.rows import read_number
from engine.protocol.status import NodeStatus, ReplicaStatus
from gateway.foreign.engine_link import EngineLink
from gateway.jobs.sealed_content import Sealer
from gateway.nodes.snapshot import Nodes
from storage.database import Database
from storage.errors import StoreUnavailable

log = logging.getLogger(__name__)

POLL_INTERVAL_S = 1.0
MAX_KEY_BYTES = 4096
CLOSE_GRACE_S = 600.0  # for running calls of an engine that was changed or removed


class ForeignEngines:
    """The links to all engines. `cache_secret` encrypts their API keys at rest."""

    def __init__(self, database: Database, registry: Registry, nodes: Nodes, cache_secret: bytes) -> None:
        self._database = database
        self._registry = registry
        self._nodes = nodes
        self._sealer = Sealer(cache_secret, "foreign engines")
        self._number: int | None = None  # number of the latest catalog change that was read
        self._links: dict[str, EngineLink] = {}
        self._stored: dict[str, StoredEngine] = {}
        self._jobs: dict[str, asyncio.Task[None]] = {}
        self._is_shown = False
        self._closing: set[asyncio.Task[None]] = set()

    def seal(self, name: str, api_key: str) -> bytes:
        """Return the encrypted API key of an engine."""
        return self._sealer.seal(name, api_key.encode())

    def link_of(self, name: str) -> EngineLink | None:
        """Return the link to an engine, or None if this gateway does not know the engine yet."""
        return self._links.get(name)

    async def run(self) -> None:
        """Follow the database until cancelled."""
        while True:
            with contextlib.suppress(StoreUnavailable):
                await self.refresh()
            self._publish()
            await asyncio.sleep(POLL_INTERVAL_S)

    async def refresh(self) -> None:
        """Read the engines if the catalog has changed. Raises StoreUnavailable."""
        async with self._database.connection() as connection:
            number = await read_number(connection)
        if number == self._number:
            return
        found = {engine.spec.name: engine for engine in await list_engines(self._database)}
        self._number = number
        for name in [known for known, stored in self._stored.items() if found.get(known) != stored]:
            self._replace(name)
        for name, stored in found.items():
            if name not in self._links:
                self._open(name, stored)
        self._publish()

    def _open(self, name: str, stored: StoredEngine) -> None:
        try:
            key = (
                "" if stored.sealed_key is None else self._sealer.open(name, stored.sealed_key, MAX_KEY_BYTES).decode()
            )
        except ValueError:
            log.error(
                "the key of a foreign engine cannot be decrypted; register the engine again", extra={"engine": name}
            )
            key = ""
        link = self._links[name] = EngineLink(stored.spec, key, self._publish)
        self._stored[name] = stored
        self._jobs[name] = asyncio.create_task(link.run(), name=f"probes of {name}")

    def _replace(self, name: str) -> None:
        """Send no further calls over the link to an engine that was changed or removed. Running calls may finish."""
        closing = asyncio.create_task(self._close(name, CLOSE_GRACE_S), name=f"end of {name}")
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def _close(self, name: str, grace_s: float) -> Coroutine[Any, Any, None]:
        del self._stored[name]
        link = self._links.pop(name)
        self._jobs.pop(name).cancel()
        return link.close(grace_s)

    def _publish(self) -> None:
        """Show the engines in the snapshot as nodes."""
        if not self._links and not self._is_shown:
            return
        self._is_shown = bool(self._links)
        self._nodes.show_engines([(self._status_of(link), link) for link in self._links.values()])

    def _status_of(self, link: EngineLink) -> NodeStatus:
        return NodeStatus(
            node_id=link.node_id,
            pop=link.pop,
            address=link.address,
            device="foreign engine",
            device_name=link.kind,
            version=link.kind,
            num_calls=link.num_calls,
            replicas=tuple(self._replicas_of(link.spec, link)),
            tasks=(),
        )

    def _replicas_of(self, spec: EngineSpec, link: EngineLink) -> list[ReplicaStatus]:
        replicas = []
        for model_id, model in sorted(spec.models.items()):
            resolved = self._registry.find(model_id)
            if resolved is None:
                continue
            is_served = link.serves(model)
            replicas.append(
                ReplicaStatus(
                    model=resolved.card.name,
                    revision=resolved.card.revision,
                    state="ready" if is_served else "failed",
                    detail="" if is_served else link.detail or f"the engine does not serve {model.name}",
                )
            )
        return replicas

    async def close(self) -> None:
        """Close the links to all engines."""
        for closing in self._closing:
            closing.cancel()
        ends = [self._close(name, 0.0) for name in list(self._links)]
        self._publish()
        await asyncio.gather(*ends, *self._closing, return_exceptions=True)
