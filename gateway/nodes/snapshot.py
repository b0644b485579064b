"""Snapshot of the nodes and their replicas, refreshed in the background.

Presence in Redis lists nodes and what they have loaded; the links know which nodes can be reached. While Redis is
unavailable, the last known nodes remain as long as their connections do. Knows no calls, and does not choose nodes.
"""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from catalog.card import ModelCard
from engine.protocol.status import NodeStatus, ReplicaStatus
from gateway.nodes.connections import NodeLink
from storage.ephemeral import Ephemeral
from storage.errors import StoreUnavailable
from telemetry import metrics

if TYPE_CHECKING:
    from service_identity.service_identity import ServiceIdentity

log = logging.getLogger(__name__)

PRESENCE_KIND = "nodes"
REFRESH_INTERVAL_S = 0.5

_ADDRESS = re.compile(r"unix:///\S+|tcp://\S+:[0-9]{1,5}")
_decode_status = msgspec.json.Decoder(NodeStatus).decode


@dataclass(frozen=True)
class Candidate:
    """One node that could serve a model version."""

    link: NodeLink
    pop: str
    is_hot: bool
    is_loading: bool
    reported_tokens: int
    proven_pop: str = ""  # "" where it has proven none
    num_waiting: int = 0

    @property
    def node_id(self) -> str:
        return self.link.node_id

    @property
    def is_free(self) -> bool:
        """True if a call would run at once, as of the node's last report."""
        return self.is_hot and not self.num_waiting

    @property
    def load_tokens(self) -> int:
        """Queued tokens: as last reported, or those that this gateway has sent, if more."""
        return max(self.reported_tokens, self.link.tokens_in_flight)


class Nodes:
    """All nodes that this gateway knows, and the links to them."""

    def __init__(
        self,
        ephemeral: Ephemeral,
        *,
        identity: ServiceIdentity,
        sender: str,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._ephemeral = ephemeral
        self._identity = identity
        self._tls = tls
        self._sender = sender
        self._statuses: dict[str, NodeStatus] = {}
        self._links: dict[str, NodeLink] = {}
        self._jobs: dict[str, asyncio.Task[None]] = {}
        self._num_hot: Counter[str] = Counter()
        self._candidates: dict[tuple[str, str], tuple[Candidate, ...]] = {}

    def candidates(self, card: ModelCard) -> tuple[Candidate, ...]:
        """Return the reachable nodes that have this version loaded or could load it, in no order."""
        key = (card.name, card.revision)
        found = self._candidates.get(key)
        if found is None:
            found = self._candidates[key] = tuple(self._find(card))
        return found

    def _find(self, card: ModelCard) -> list[Candidate]:
        found = []
        for node_id, status in self._statuses.items():
            link = self._links.get(node_id)
            if link is None or not link.is_open or status.is_draining:
                continue
            replica = _replica(status, card)
            if replica is None and card.task_slug not in status.tasks:
                continue
            if replica is not None and replica.state in ("draining", "failed"):
                continue
            found.append(
                Candidate(
                    link=link,
                    pop=status.pop,
                    is_hot=replica is not None and replica.state == "ready",
                    is_loading=replica is not None and replica.state == "loading",
                    reported_tokens=0 if replica is None else replica.queued_tokens,
                    proven_pop=link.proven_pop,
                    num_waiting=0 if replica is None else replica.num_waiting,
                )
            )
        return found

    def has_free_node(self, card: ModelCard) -> bool:
        """Return True if a call to this model version would run at once on some node."""
        return any(node.is_free for node in self.candidates(card))

    def hot_models(self) -> list[str]:
        """Return the names of models with a hot replica on a reachable node."""
        return sorted(self._num_hot)

    @property
    def num_reachable(self) -> int:
        return sum(link.is_open for link in self._links.values())

    async def run(self) -> None:
        """Refresh until cancelled."""
        was_unavailable = False
        while True:
            try:
                await self.refresh()
                was_unavailable = False
            except StoreUnavailable:
                if not was_unavailable:
                    log.warning("presence was not read: Redis is unavailable; keeping the last known nodes")
                was_unavailable = True
            await asyncio.sleep(REFRESH_INTERVAL_S)

    async def refresh(self) -> None:
        """Read presence once. Raises StoreUnavailable, and leaves the snapshot unchanged then."""
        present = {}
        for node_id, payload in (await self._ephemeral.present(PRESENCE_KIND)).items():
            status = _read(node_id, payload)
            if status is not None:
                present[node_id] = status
        for node_id, status in present.items():
            self._know(node_id, status)
        for node_id in [known for known in self._statuses if known not in present]:
            if not self._links[node_id].is_open:
                self._forget(node_id)
        self._on_change()

    def _know(self, node_id: str, status: NodeStatus) -> None:
        link = self._links.get(node_id)
        if link is not None and not link.is_open and (link.address, link.pop) != (status.address, status.pop):
            self._forget(node_id)
            link = None
        self._statuses[node_id] = status
        if link is None:
            link = NodeLink(
                node_id,
                status.address,
                pop=status.pop,
                sender=self._sender,
                identity=self._identity,
                on_change=self._on_change,
                tls=self._tls,
            )
            self._links[node_id] = link
            self._jobs[node_id] = asyncio.create_task(link.run(), name=f"link to {node_id}")

    def _forget(self, node_id: str) -> None:
        del self._statuses[node_id]
        del self._links[node_id]
        self._jobs.pop(node_id).cancel()

    def _on_change(self) -> None:
        self._candidates = {}
        metrics.NODES_ALIVE.set(self.num_reachable)
        gone = self._num_hot.keys()
        self._num_hot = self._count_hot()
        for model in gone | self._num_hot.keys():
            metrics.READY_REPLICAS.labels(model).set(self._num_hot[model])

    def _count_hot(self) -> Counter[str]:
        """Return the number of hot replicas on reachable nodes, by model."""
        return Counter(
            replica.model
            for node_id, status in self._statuses.items()
            if not status.is_draining and self._links[node_id].is_open
            for replica in status.replicas
            if replica.state == "ready"
        )

    async def close(self) -> None:
        """Close every connection."""
        jobs = list(self._jobs.values())
        for node_id in list(self._statuses):
            self._forget(node_id)
        await asyncio.gather(*jobs, return_exceptions=True)


def _replica(status: NodeStatus, card: ModelCard) -> ReplicaStatus | None:
    for replica in status.replicas:
        if replica.model == card.name and replica.revision == card.revision:
            return replica
    return None


def _read(node_id: str, payload: bytes) -> NodeStatus | None:
    """Return a node's status; None if it is malformed."""
    try:
        status = _decode_status(payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        log.warning("node presence is unreadable", extra={"node_id": node_id})
        return None
    if status.node_id != node_id or not _ADDRESS.fullmatch(status.address):
        log.warning("node presence has another node's id or a malformed address", extra={"node_id": node_id})
        return None
    return status
