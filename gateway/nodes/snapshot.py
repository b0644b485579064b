"""Snapshot of the nodes and their replicas, refreshed in the background.

Presence in Redis lists nodes and what they have loaded; the links know which nodes can be reached. While Redis is
unavailable, the last known nodes remain as long as their connections do. Knows no calls, and does not choose nodes.
"""

from __future__ import annotations

import asyncio
import functools
import heapq
import itertools
import logging
import math
import ssl
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from catalog.card import ModelCard
from catalog.foreign_engines import is_without_weights
from engine.protocol.status import READY_STATES, NodeStatus, ReplicaStatus
from gateway.nodes.candidate import Candidate, Exclusion, hash_of
from gateway.nodes.connections import NodeLink
from gateway.nodes.geography import Geography
from gateway.nodes.health import DEFAULT_HEALTH, HealthPolicy, NodeHealth
from gateway.nodes.link import Link
from gateway.nodes.presence import PresenceReader
from gateway.nodes.speeds import Speeds
from storage.ephemeral import Ephemeral
from storage.errors import StoreUnavailable
from telemetry import metrics
from telemetry.bounded_cache import BoundedCache
from tenants.residency import ANYWHERE, Residency

if TYPE_CHECKING:
    from service_identity.service_identity import ServiceIdentity

log = logging.getLogger(__name__)

REFRESH_INTERVAL_S = 0.5
DEPARTED_S = 300.0  # for which a node that has left is still listed as gone
MAX_DEPARTED = 1000
MAX_HOSTS = 200  # nodes with the model among which a call is placed: the nearest
MAX_LOADERS = 16  # nodes that could load the model, besides them
SUSPENSION_S = 1.5
SLOW_CONNECTION_S = 0.05  # round trip of a node, above that of its PoP, that counts as its own
ENGINE_TOKENS_PER_S = 20_000.0  # assumed speed of a foreign engine, which reports none
LOAD_S = 10.0  # to load a model whose loading time on the node is unknown


class DeviceLimits(NamedTuple):
    """Temperature and power of a node's devices above which other nodes are preferred. 0 is no limit."""

    temperature_c: float = 0.0
    power_w: float = 0.0

    def reason(self, status: NodeStatus) -> str:
        """Return which limit the node exceeds, or "" for none."""
        if self.temperature_c and status.temperature_c > self.temperature_c:
            return f"the device has {status.temperature_c:.0f} degrees Celsius, above {self.temperature_c:.0f}"
        if self.power_w and status.power_w > self.power_w:
            return f"the devices draw {status.power_w:.0f} W, above {self.power_w:.0f} W"
        return ""


NO_LIMITS = DeviceLimits()


class KnownNode(NamedTuple):
    """One node of the snapshot: its last status, and whether it can be reached. A node that `is_gone` has left within
    the last DEPARTED_S seconds."""

    status: NodeStatus
    link: Link | None

    @property
    def is_gone(self) -> bool:
        return self.link is None

    @property
    def is_reachable(self) -> bool:
        return self.link is not None and self.link.is_open


class Nodes:
    """All nodes that this gateway knows, and the links to them."""

    def __init__(
        self,
        ephemeral: Ephemeral,
        *,
        identity: ServiceIdentity,
        sender: str,
        tls: ssl.SSLContext | None = None,
        geography: Geography | None = None,
        health: HealthPolicy = DEFAULT_HEALTH,
        limits: DeviceLimits = NO_LIMITS,
    ) -> None:
        self._presence = PresenceReader(ephemeral, self._distance_s)
        self._geography = geography if geography is not None else Geography("", {})
        self._health_policy = health
        self._health: dict[str, NodeHealth] = {}
        self._limits = limits
        self._opened_s = self.now_s()
        self._speeds = Speeds()
        self._identity = identity
        self._tls = tls
        self._sender = sender
        self._statuses: dict[str, NodeStatus] = {}
        self._departed: BoundedCache[str, NodeStatus] = BoundedCache(MAX_DEPARTED, ttl_s=DEPARTED_S)
        self._links: dict[str, Link] = {}
        self._engines: dict[str, NodeStatus] = {}
        self._jobs: dict[str, asyncio.Task[None]] = {}
        self._absent: set[str] = set()  # ids without presence whose connection may still be open
        self._closed: set[str] = set()  # ids whose connection was lost since the last refresh
        self._reachable: set[str] = set()
        self._slow: set[str] = set()  # ids whose round trip is much longer than that of their PoP
        self._ready_models: dict[str, tuple[str, ...]] = {}  # reachable node -> models
        self._num_hot: Counter[str] = Counter()
        self._hosts: dict[str, set[str]] = {}  # ids of the nodes with a replica, by model
        self._order: list[str] = []  # ids, the nearest first; empty if unknown
        self._geography_version = 0
        self._of_node: dict[str, dict[tuple[str, str], Candidate]] = {}
        self._candidates: dict[tuple[str, str, Residency], tuple[Candidate, ...]] = {}

    def candidates(
        self,
        card: ModelCard,
        residency: Residency = ANYWHERE,
        admits: Callable[[Residency, Candidate], bool] | None = None,
    ) -> tuple[Candidate, ...]:
        """Return the nodes that may take a call of this version: the nearest that have the model, and some of the
        nearest that could load it. In no order. `admits` decides for calls with residency rules."""
        key = (card.name, card.revision, residency)
        found = self._candidates.get(key)
        if found is None:
            found = self._candidates[key] = tuple(self._find(card, residency, admits))
        return found

    def all_candidates(self, card: ModelCard) -> list[Candidate]:
        """Return every present node as a candidate for this version; those that cannot take calls say why."""
        return [self._candidate_of(node_id, card) for node_id in self._statuses]

    def _find(
        self, card: ModelCard, residency: Residency, admits: Callable[[Residency, Candidate], bool] | None
    ) -> list[Candidate]:
        is_restricted = bool(residency.rules) or residency.is_zero_retention

        def may_take(node: Candidate) -> bool:
            return node.exclusion is None and not (is_restricted and admits is not None and not admits(residency, node))

        host_ids = self._hosts.get(card.name, set())
        hosts = [node for node_id in host_ids if may_take(node := self._candidate_of(node_id, card))]
        if len(hosts) > MAX_HOSTS:
            hosts = heapq.nsmallest(MAX_HOSTS, hosts, key=lambda node: (node.base_s, node.node_hash))
        others = (self._candidate_of(node_id, card) for node_id in self._nearest_first() if node_id not in host_ids)
        return [*hosts, *itertools.islice(filter(may_take, others), MAX_LOADERS)]

    def _nearest_first(self) -> list[str]:
        if not self._order:
            self._order = sorted(self._statuses, key=lambda node_id: (self._distance_s(node_id), node_id))
        return self._order

    def _distance_s(self, node_id: str) -> float:
        link = self._links.get(node_id)
        return 0.0 if link is None else self._round_trip_s(link)

    def _candidate_of(self, node_id: str, card: ModelCard) -> Candidate:
        of_node = self._of_node.setdefault(node_id, {})
        key = (card.name, card.revision)
        found = of_node.get(key)
        if found is None:
            found = of_node[key] = self._candidate(self._statuses[node_id], card)
        return found

    def _candidate(self, status: NodeStatus, card: ModelCard) -> Candidate:
        link, replica = self._links[status.node_id], _replica(status, card)
        is_engine = status.node_id in self._engines
        return Candidate(
            link=link,
            health=self._health[status.node_id],
            node_hash=hash_of(status.node_id),
            pop=status.pop,
            is_hot=replica is not None and replica.state in READY_STATES,
            is_loading=replica is not None and replica.state == "loading",
            tokens_per_s=ENGINE_TOKENS_PER_S if is_engine else self._speeds.of(status.node_id, card.name),
            round_trip_s=self._round_trip_s(link),
            load_s=_load_s(replica),
            limit=self._limits.reason(status),
            reported_tokens=0 if replica is None else replica.queued_tokens,
            proven_pop=link.proven_pop,
            num_waiting=0 if replica is None else replica.num_waiting,
            exclusion=_exclusion(status, replica, card, is_reachable=link.is_open),
        )

    def now_s(self) -> float:
        """Return the time on the clock of the candidates' `health`."""
        return time.monotonic()

    def round_trips_s(self) -> dict[str, float]:
        """Return the measured round trips in seconds by PoP: that of the PoP's fastest connection."""
        found: dict[str, float] = {}
        for node_id, link in self._links.items():
            round_trip_s = link.round_trip_s
            if round_trip_s is None:
                continue
            if round_trip_s < found.get(link.pop, math.inf):
                found[link.pop] = round_trip_s
            if (round_trip_s > self._geography.round_trip_s(link.pop) + SLOW_CONNECTION_S) != (node_id in self._slow):
                self._slow ^= {node_id}
                self._of_node.pop(node_id, None)
        return found

    def _round_trip_s(self, link: Link) -> float:
        """Return the round trip of the node's PoP, unless the node's own is much longer."""
        of_pop_s = self._geography.round_trip_s(link.pop)
        own_s = link.round_trip_s
        return own_s if own_s is not None and own_s > of_pop_s + SLOW_CONNECTION_S else of_pop_s

    def find(self, node_id: str) -> KnownNode | None:
        """Return a node that is present or has left recently, or None."""
        status = self._statuses.get(node_id)
        if status is not None:
            return KnownNode(status, self._links[node_id])
        departed = self._departed.get(node_id)
        return None if departed is None else KnownNode(departed, None)

    def known_nodes(self) -> list[KnownNode]:
        """Return every node that is present or has left recently, in the order of their ids."""
        present = [KnownNode(status, self._links[node_id]) for node_id, status in self._statuses.items()]
        len(self._departed)  # evicts the expired ones
        gone = [KnownNode(status, None) for node_id in self._departed if (status := self._departed.get(node_id))]
        return sorted(present + gone, key=lambda node: node.status.node_id)

    def has_free_node(self, card: ModelCard) -> bool:
        """Return True if a call to this model version would run at once on some node."""
        return any(node.is_free for node in self.candidates(card))

    def hot_models(self) -> list[str]:
        """Return the names of models with a hot replica on a reachable node."""
        return sorted(model for model, count in self._num_hot.items() if count)

    def replicas_of(self, model: str) -> list[tuple[NodeStatus, ReplicaStatus]]:
        """Return the replicas of all versions of a model, each with its node, as last reported."""
        return [
            (status, replica)
            for _, status in sorted(self._statuses.items())
            for replica in status.replicas
            if replica.model == model
        ]

    @property
    def has_engines(self) -> bool:
        """True if foreign engines are registered."""
        return bool(self._engines)

    @property
    def num_reachable(self) -> int:
        return len(self._reachable)

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
        changed, absent = await self._presence.read()
        for node_id, status in changed.items():
            if node_id not in self._engines:
                self._know(node_id, status)
        self._absent = (self._absent | absent) - changed.keys()
        for node_id in self._closed & self._statuses.keys() - self._absent - self._engines.keys():
            self._know(node_id, self._statuses[node_id])  # the node may have moved to another address
        self._closed.clear()
        for node_id in list(self._absent):
            link = self._links.get(node_id)
            if link is None or node_id in self._engines:
                self._absent.discard(node_id)
            elif not link.is_open:
                self._departed.put(node_id, self._statuses[node_id])
                self._forget(node_id)
                self._absent.discard(node_id)
        if self._geography.version != self._geography_version:
            self._geography_version = self._geography.version
            self._of_node.clear()
            self._order.clear()
        self._candidates.clear()
        now_s = self.now_s()
        metrics.NODES_EJECTED.set(sum(health.ejected_until_s > now_s for health in self._health.values()))

    def show_engines(self, engines: Sequence[tuple[NodeStatus, Link]]) -> None:
        """Replace the foreign engines in the snapshot. Their links belong to the caller."""
        shown = {status.node_id: status for status, _ in engines}
        links = {status.node_id: link for status, link in engines}
        for node_id in self._engines.keys() - shown.keys():
            self._departed.put(node_id, self._statuses[node_id])
            self._forget(node_id)
        self._engines = shown
        for node_id, status in shown.items():
            if node_id not in self._health or self._links[node_id] is not links[node_id]:
                self._health[node_id] = NodeHealth(self._health_policy)
            before = self._statuses.get(node_id)
            self._statuses[node_id], self._links[node_id] = status, links[node_id]
            self._departed.pop(node_id)
            self._on_change(node_id, before)

    def _know(self, node_id: str, status: NodeStatus) -> None:
        link = self._links.get(node_id)
        if link is not None and not link.is_open and (link.address, link.pop) != (status.address, status.pop):
            self._forget(node_id)
            link = None
        before = self._statuses.get(node_id)
        if status is not before:
            self._speeds.add(status)
        self._statuses[node_id] = status
        self._departed.pop(node_id)
        self._start_slowly_if_new(node_id, status, before)
        if link is None:
            link = NodeLink(
                node_id,
                status.address,
                pop=status.pop,
                sender=self._sender,
                identity=self._identity,
                on_change=functools.partial(self._on_link_change, node_id),
                on_suspicion=self._suspect,
                tls=self._tls,
            )
            self._links[node_id] = link
            self._jobs[node_id] = asyncio.create_task(link.run(), name=f"link to {node_id}")
        self._on_change(node_id, before)

    def _start_slowly_if_new(self, node_id: str, status: NodeStatus, before: NodeStatus | None) -> None:
        """Begin the slow start of a node that was started after this gateway has found the other nodes."""
        now_s = self.now_s()
        health = self._health.get(node_id)
        if health is None:
            health = self._health[node_id] = NodeHealth(self._health_policy)
            is_new = now_s - self._opened_s > self._health_policy.slow_start_s
        else:
            is_new = before is not None and before.started_s != status.started_s
        if is_new and self._health_policy.slow_start_s:
            health.start_slowly(now_s)

    def _suspect(self, node_id: str) -> None:
        """Send no calls to a silent node for now, if there are others. Its connection is closed if it stays silent."""
        health = self._health.get(node_id)
        if health is not None:
            health.suspend(self.now_s() + SUSPENSION_S)

    def _forget(self, node_id: str) -> None:
        before = self._statuses.pop(node_id)
        del self._links[node_id]
        del self._health[node_id]
        self._speeds.remove(node_id)
        self._slow.discard(node_id)
        self._on_change(node_id, before)
        job = self._jobs.pop(node_id, None)
        if job is not None:
            job.cancel()

    def _on_link_change(self, node_id: str) -> None:
        if node_id in self._links:
            self._closed.add(node_id)
            self._on_change(node_id, self._statuses[node_id])

    def _on_change(self, node_id: str, before: NodeStatus | None) -> None:
        """Update what is derived from a node's status and connection. `before` is its status before."""
        self._candidates.clear()
        self._of_node.pop(node_id, None)
        status, link = self._statuses.get(node_id), self._links.get(node_id)
        if (before is None) != (status is None):
            self._order.clear()
        models, models_before = _models(status), _models(before)
        if models != models_before:
            for model in models_before:
                self._hosts[model].discard(node_id)
            for model in models:
                self._hosts.setdefault(model, set()).add(node_id)
        is_reachable = link is not None and link.is_open
        if is_reachable != (node_id in self._reachable):
            self._reachable ^= {node_id}
            metrics.NODES_ALIVE.set(len(self._reachable))
        ready = _ready_models(status) if is_reachable else ()
        was_ready = self._ready_models.get(node_id, ())
        if ready != was_ready:
            self._ready_models[node_id] = ready
            self._num_hot.update(ready)
            self._num_hot.subtract(was_ready)
            for model in {*ready, *was_ready}:
                metrics.READY_REPLICAS.labels(model).set(self._num_hot[model])

    async def close(self) -> None:
        """Close every connection."""
        jobs = list(self._jobs.values())
        for node_id in list(self._statuses):
            self._forget(node_id)
        await asyncio.gather(*jobs, return_exceptions=True)


def _load_s(replica: ReplicaStatus | None) -> float:
    """Return the seconds until a call to the replica can start, apart from its queue."""
    if replica is not None and replica.state in READY_STATES:
        return 0.0
    load_s = LOAD_S if replica is None else replica.reload_s or LOAD_S
    return load_s / 2 if replica is not None and replica.state == "loading" else load_s


def _exclusion(
    status: NodeStatus, replica: ReplicaStatus | None, card: ModelCard, *, is_reachable: bool
) -> Exclusion | None:
    """Return why the node can take no calls of the model version, or None."""
    if not is_reachable:
        return Exclusion("reachable", "this gateway is not connected to the node")
    if status.is_draining:
        return Exclusion("draining", "the node is draining")
    if replica is None and is_without_weights(card):
        return Exclusion("model", "the model has no weights: only foreign engines serve it")
    if replica is None and card.task_slug not in status.tasks:
        return Exclusion("model", f"the node does not run models of the task {card.task_slug}")
    if replica is not None and replica.state in ("draining", "failed"):
        return Exclusion("model", f"the replica is {replica.state}{': ' * bool(replica.detail)}{replica.detail}")
    return None


def _models(status: NodeStatus | None) -> list[str]:
    return [] if status is None else [replica.model for replica in status.replicas]


def _ready_models(status: NodeStatus | None) -> tuple[str, ...]:
    """Return the model of each replica that can take calls."""
    if status is None or status.is_draining:
        return ()
    return tuple([replica.model for replica in status.replicas if replica.state in READY_STATES])


def _replica(status: NodeStatus, card: ModelCard) -> ReplicaStatus | None:
    for replica in status.replicas:
        if replica.model == card.name and replica.revision == card.revision:
            return replica
    return None
