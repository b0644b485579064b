"""Fleet: the nodes and PoPs as the API shows them, made from the snapshot and the operator's table of locations.

A node's report is made, and encoded, once per change of its status: a dashboard of a thousand nodes costs what the
changed ones cost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Literal

import msgspec
from msgspec import Struct

from engine.protocol.status import NodeStatus, ReplicaState, ReplicaStatus
from gateway.nodes.geography import Geography
from gateway.nodes.known_pops import find_known_pop
from gateway.nodes.residency import Locations
from gateway.nodes.round_trips import RoundTrips
from gateway.nodes.snapshot import KnownNode, Nodes
from tenants.residency import UNKNOWN_LOCATION

NodeState = Literal["ready", "draining", "gone"]


Version = tuple[NodeStatus, bool, bool]
"""The inputs of a report: the status, True if the node is gone, and True if it is reachable. Reports of equal
versions are equal."""


_encode = msgspec.json.Encoder().encode


class ReplicaReport(Struct, frozen=True, kw_only=True, gc=False):
    """One replica of a node. Block counts are those of the KV cache. `cache_hit_ratio` is the part of all prompt tokens
    that were served from the prefix cache; null without prompts. `busy_ratio` is the part of the last second in which
    its device computed. An `is_pinned` model is never evicted. `demand` is the decayed number of calls per minute, and
    `reload_s` how many seconds the last load from local disk took."""

    model: str
    revision: str
    state: ReplicaState
    num_running: int
    num_waiting: int
    queued_tokens: int
    num_blocks: int
    num_free_blocks: int
    num_cached_blocks: int
    busy_ratio: float
    cache_hit_ratio: float | None
    weight_bytes: int
    kv_bytes: int
    detail: str
    is_pinned: bool
    demand: float
    reload_s: float


class NodeReport(Struct, frozen=True, kw_only=True, gc=False):
    """One node. `is_reachable`: the gateway that responds is connected to it. `kv_free_ratio` is the part of all KV
    blocks that new sequences can have, including cached ones; null without a KV cache. `memory_bytes` is the memory of
    the device, 0 if unknown; weights and KV caches hold `used_bytes` of `budget_bytes` (0: no limit). A node that has
    left is listed as gone for five minutes."""

    node_id: str
    pop: str
    state: NodeState
    is_reachable: bool
    device: str
    device_name: str
    memory_bytes: int
    budget_bytes: int
    used_bytes: int
    weight_bytes: int
    kv_bytes: int
    kv_free_ratio: float | None
    version: str
    started_at: datetime | None
    num_calls: int
    queued_tokens: int
    cache_hit_ratio: float | None
    replicas: tuple[ReplicaReport, ...]


class PopReport(Struct, frozen=True, kw_only=True, gc=False):
    """One PoP. City and coordinates come from the operator's table or from the PoP's airport code; null if neither
    says. `jurisdictions` come only from the operator's table, as residency rules do. `round_trip_ms` is the round trip
    from the gateway that responds, which is estimated from the coordinates unless `is_measured`. `round_trips_ms` are
    those that the PoP's own gateways have measured to other PoPs."""

    pop: str
    city: str | None
    country: str | None
    latitude: float | None
    longitude: float | None
    jurisdictions: tuple[str, ...]
    num_nodes: int
    round_trip_ms: float
    is_measured: bool
    round_trips_ms: dict[str, float]


class Fleet:
    """Reports on the nodes of the snapshot and their PoPs. `pop` is the gateway's own."""

    def __init__(
        self, nodes: Nodes, locations: Locations, geography: Geography, round_trips: RoundTrips, pop: str
    ) -> None:
        self._geography = geography
        self._round_trips = round_trips
        self._nodes = nodes
        self._locations = locations
        self._pop = pop
        self._encoded: dict[str, tuple[Version, msgspec.Raw]] = {}

    def node(self, node_id: str) -> NodeReport | None:
        """Return the report on one node, or None if there is no such node."""
        known = self._nodes.find(node_id)
        return None if known is None else report_on(known)

    def versions(self) -> dict[str, Version]:
        """Return the version of each node's report by node id; equal versions have equal reports."""
        return {known[0].node_id: _version(known) for known in self._nodes.known_nodes()}

    def encoded(self, node_id: str) -> msgspec.Raw | None:
        """Return the report on one node as JSON, or None if there is no such node."""
        known = self._nodes.find(node_id)
        return None if known is None else self._encode(known)

    def encoded_nodes(self) -> list[msgspec.Raw]:
        """Return the reports on all nodes as JSON, in the order of their ids."""
        nodes = self._nodes.known_nodes()
        reports = [self._encode(known) for known in nodes]
        if len(self._encoded) > len(nodes):  # some nodes are no longer known
            known_ids = {known.status.node_id for known in nodes}
            self._encoded = {node_id: each for node_id, each in self._encoded.items() if node_id in known_ids}
        return reports

    def _encode(self, known: KnownNode) -> msgspec.Raw:
        """Return the report on a node as JSON; made only if the node has changed."""
        version, before = _version(known), self._encoded.get(known.status.node_id)
        if before is not None and before[0] == version:
            return before[1]
        raw = msgspec.Raw(_encode(report_on(known)))
        self._encoded[known.status.node_id] = (version, raw)
        return raw

    def pops(self) -> list[PopReport]:
        """Return the PoPs of the operator's table, of all present nodes and of this gateway, by name."""
        present = Counter(known.status.pop for known in self._nodes.known_nodes() if not known.is_gone)
        names = {*present, *self._locations.by_pop, self._pop}
        return [self._pop_report(name, present[name]) for name in sorted(names)]

    def _pop_report(self, name: str, num_nodes: int) -> PopReport:
        location, known = self._locations.by_pop.get(name, UNKNOWN_LOCATION), find_known_pop(name)
        has_point = location.latitude is not None
        return PopReport(
            pop=name,
            city=location.city or (known.city if known is not None and not has_point else None),
            country=location.country or (known.country if known is not None else None),
            latitude=location.latitude if has_point or known is None else known.latitude,
            longitude=location.longitude if has_point or known is None else known.longitude,
            jurisdictions=tuple(sorted(location.jurisdictions)),
            num_nodes=num_nodes,
            round_trip_ms=_milliseconds(self._geography.round_trip_s(name)),
            is_measured=name in self._geography.measured,
            round_trips_ms={
                other: _milliseconds(seconds) for other, seconds in self._round_trips.published.get(name, {}).items()
            },
        )


def _milliseconds(seconds: float) -> float:
    return round(1000 * seconds, 2)


def _version(known: KnownNode) -> Version:
    status, link = known
    return status, link is None, link is not None and link.is_open


def report_on(known: KnownNode) -> NodeReport:
    """Return the report on one node."""
    status, replicas = known.status, known.status.replicas
    num_blocks = sum(each.num_blocks for each in replicas)
    num_available = sum(each.num_free_blocks + each.num_cached_blocks for each in replicas)
    return NodeReport(
        node_id=status.node_id,
        pop=status.pop,
        state="gone" if known.is_gone else "draining" if status.is_draining else "ready",
        is_reachable=known.is_reachable,
        device=status.device,
        device_name=status.device_name,
        memory_bytes=status.memory_bytes,
        budget_bytes=status.budget_bytes,
        used_bytes=status.used_bytes,
        weight_bytes=sum(each.weight_bytes for each in replicas),
        kv_bytes=sum(each.kv_bytes for each in replicas),
        kv_free_ratio=round(num_available / num_blocks, 4) if num_blocks else None,
        version=status.version,
        started_at=datetime.fromtimestamp(status.started_s, UTC) if status.started_s else None,
        num_calls=status.num_calls,
        queued_tokens=sum(each.queued_tokens for each in replicas),
        cache_hit_ratio=_hit_ratio(replicas),
        replicas=tuple(map(_replica_report, replicas)),
    )


def _replica_report(replica: ReplicaStatus) -> ReplicaReport:
    return ReplicaReport(
        model=replica.model,
        revision=replica.revision,
        state=replica.state,
        num_running=replica.num_running,
        num_waiting=replica.num_waiting,
        queued_tokens=replica.queued_tokens,
        num_blocks=replica.num_blocks,
        num_free_blocks=replica.num_free_blocks,
        num_cached_blocks=replica.num_cached_blocks,
        busy_ratio=replica.busy_ratio,
        cache_hit_ratio=_hit_ratio((replica,)),
        weight_bytes=replica.weight_bytes,
        kv_bytes=replica.kv_bytes,
        detail=replica.detail,
        is_pinned=replica.is_pinned,
        demand=replica.demand,
        reload_s=replica.reload_s,
    )


def _hit_ratio(replicas: Iterable[ReplicaStatus]) -> float | None:
    num_prompt_tokens = num_cached_tokens = 0
    for replica in replicas:
        num_prompt_tokens += replica.num_prompt_tokens
        num_cached_tokens += replica.num_cached_tokens
    return round(num_cached_tokens / num_prompt_tokens, 4) if num_prompt_tokens else None
