"""Inputs of the scaling plan, from the node snapshot, the catalog, the PoPs and the stored rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from catalog.card import ModelCard
from engine.protocol.status import NodeStatus
from gateway.nodes.fleet import PopReport
from gateway.nodes.geography import Point
from gateway.nodes.snapshot import KnownNode
from gateway.scaling.distances import find_neighbors
from gateway.scaling.inputs import Demand, ModelFacts, NodeFacts

MIN_BUSY_US = 10_000_000  # measured time of a replica below which its speed is not known
BACKLOG_S = 30.0  # queued tokens count as demand that should be computed in this time
KV_FLOOR_BYTES = 256 << 20  # assumed until a replica of the model reports its KV cache
_PRESENT = ("ready", "idle", "loading")


def nodes_of(known: Iterable[KnownNode]) -> list[NodeFacts]:
    """Return the nodes that take calls and can be managed."""
    return [
        NodeFacts(
            node_id=status.node_id,
            pop=status.pop,
            memory_bytes=status.budget_bytes or status.memory_bytes,
            tasks=frozenset(status.tasks),
            loaded={
                each.model: each.weight_bytes + each.kv_bytes for each in status.replicas if each.state in _PRESENT
            },
            pinned=pinned_models(status),
            can_pin="pin" in status.actions,
        )
        for status in (node.status for node in known if node.is_reachable)
        if not status.is_draining and status.version
    ]


def pinned_models(status: NodeStatus) -> frozenset[str]:
    """Return the models that the node never evicts."""
    return frozenset(each.model for each in status.replicas if each.is_pinned)


def models_of(
    cards: Iterable[ModelCard], known: Iterable[KnownNode], assumed_tokens_per_s: float
) -> dict[str, ModelFacts]:
    """Return the facts of all models: memory and speed as measured by the nodes, or else assumed from the files."""
    memory_bytes: dict[str, int] = {}
    speeds: dict[str, float] = {}
    for status in (node.status for node in known if not node.is_gone):
        for replica in status.replicas:
            used = replica.weight_bytes + replica.kv_bytes
            memory_bytes[replica.model] = max(memory_bytes.get(replica.model, 0), used)
            if replica.busy_us >= MIN_BUSY_US:
                speed = replica.num_computed_tokens * 1e6 * replica.num_ranks / replica.busy_us
                speeds[replica.model] = max(speeds.get(replica.model, 0.0), speed)
    return {
        card.name: ModelFacts(
            name=card.name,
            task=card.task_slug,
            memory_bytes=memory_bytes.get(card.name)
            or sum(file.size_bytes for file in card.files) * 11 // 10 + KV_FLOOR_BYTES,
            # A replica that has only had single calls has been slower than it can be with a full batch.
            tokens_per_s=max(speeds.get(card.name, 0.0), assumed_tokens_per_s),
        )
        for card in cards
    }


def backlog_of(known: Iterable[KnownNode]) -> list[Demand]:
    """Return the queued tokens of all nodes as demand, because calls that wait are not yet counted as finished."""
    return [
        Demand(replica.model, node.status.pop, replica.queued_tokens / BACKLOG_S)
        for node in known
        if node.is_reachable
        for replica in node.status.replicas
        if replica.queued_tokens
    ]


def neighbors_of(
    pops: Sequence[PopReport], nodes: Iterable[NodeFacts], pops_with_demand: Iterable[str]
) -> Mapping[str, list[str]]:
    """Return the PoPs with nodes in the order of their distance, for each PoP with nodes or demand."""
    hosts = {node.pop for node in nodes}
    points: dict[str, Point | None] = {
        each.pop: None if each.latitude is None or each.longitude is None else (each.latitude, each.longitude)
        for each in pops
    }
    names = hosts.union(pops_with_demand)
    return find_neighbors({pop: points.get(pop) for pop in names}, hosts)
