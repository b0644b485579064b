"""The scaling plan: which nodes load and unload which models, with reasons. A pure function of its inputs.

Equal inputs give equal plans, so two control loops at once do no harm. `targets.py` decides how many replicas a model
has in a PoP; this file chooses the nodes. Replicas that exist stay where they are, unless their node has more demand
than time. New ones go to the least busy node of the PoP with enough memory, and to the nearest PoP with room if the PoP
is full.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace

from gateway.scaling.inputs import Change, Inputs, Key, Level, ModelFacts, NodeFacts, Plan, Target, Unplaced
from gateway.scaling.targets import find_targets
from tenants.scaling_rules import EVERYWHERE

MAX_OVERFLOW_POPS = 16  # PoPs asked for room when a PoP is full, nearest first


@dataclass(slots=True)
class _NodeRoom:
    """A node while the plan is made: the models that it keeps, the part of its time that their demand takes, and the
    bytes that remain (or, for nodes that do not report their memory, the number of models)."""

    facts: NodeFacts
    free: float
    busy: float = 0.0
    kept: set[str] = field(default_factory=set)

    def need(self, model: ModelFacts) -> float:
        return model.memory_bytes if self.facts.memory_bytes else 1

    def fits(self, model: ModelFacts) -> bool:
        return model.name not in self.kept and model.task in self.facts.tasks and self.free >= self.need(model)


def make_plan(inputs: Inputs) -> Plan:
    """Return the plan. Changes are ordered: unload, pin and unpin, then load, models with reserved capacity or rules
    first."""
    targets, levels = find_targets(inputs)
    rooms = _rooms(inputs)
    kept = _keep(inputs, targets, rooms)
    guests: Counter[Key] = Counter()
    loads, unplaced = _place_new(inputs, targets, rooms, kept, guests)
    for key, number in guests.items():
        levels[key] = replace(levels.get(key, Level(0)), num_guests=number)
    reasons = {(target.model, target.pop): target for target in targets}
    unloads = [
        Change("unload", model, node.node_id, node.pop, _surplus_reason(reasons.get((model, node.pop))))
        for node in inputs.nodes
        for model in node.loaded
        if model in inputs.models and model not in kept[node.node_id] and model not in node.pinned
    ]
    return Plan(tuple(targets), (*unloads, *_pins(inputs, kept), *loads), tuple(unplaced), levels)


def _rooms(inputs: Inputs) -> dict[str, dict[str, _NodeRoom]]:
    """Return the nodes by PoP, none of which keeps a model yet."""
    rooms: dict[str, dict[str, _NodeRoom]] = defaultdict(dict)
    for node in inputs.nodes:
        free = node.memory_bytes * inputs.policy.usable_memory or inputs.policy.max_unknown
        rooms[node.pop][node.node_id] = _NodeRoom(node, free)
    return dict(rooms)


def _load(inputs: Inputs, target: Target) -> float:
    """Return the part of a node's time that one replica's share of the demand takes."""
    speed = inputs.models[target.model].tokens_per_s
    return target.tokens_per_s / (max(1, target.num_replicas) * speed)


def _keep(inputs: Inputs, targets: list[Target], rooms: dict[str, dict[str, _NodeRoom]]) -> dict[str, set[str]]:
    """Keep the replicas that exist, up to each target and all that are pinned, but no more on one node than it has time
    for. Return the kept models by node id."""
    wanted = {(target.model, target.pop): target.num_replicas for target in targets}
    loads = {(target.model, target.pop): _load(inputs, target) for target in targets}
    kept: dict[str, set[str]] = {node.node_id: set() for node in inputs.nodes}
    replicas = [(model, node) for node in inputs.nodes for model in node.loaded]
    replicas.sort(key=lambda each: (each[0] not in each[1].pinned, _hash(each[0], each[1].node_id)))
    for model, node in replicas:
        is_wanted = wanted.get((model, node.pop), 0) > 0
        is_fixed = model in node.pinned or model not in inputs.models
        room, load = rooms[node.pop][node.node_id], loads.get((model, node.pop), 0.0)
        is_overloaded = room.kept and room.busy + load > 1.0
        if not is_fixed and (not is_wanted or is_overloaded):
            continue
        room.free -= max(node.loaded[model], 1) if node.memory_bytes else 1
        room.busy += load
        room.kept.add(model)
        kept[node.node_id].add(model)
        if is_wanted:
            wanted[model, node.pop] -= 1
    return kept


def _place_new(
    inputs: Inputs,
    targets: list[Target],
    rooms: dict[str, dict[str, _NodeRoom]],
    kept: dict[str, set[str]],
    guests: Counter[Key],
) -> tuple[list[Change], list[Unplaced]]:
    """Choose nodes for the replicas that are missing. Return the loads, and the replicas without a node. Counts
    replicas in other PoPs than their target's as `guests`."""
    num_kept: dict[Key, int] = defaultdict(int)
    for nodes in rooms.values():
        for each in nodes.values():
            for model in each.kept:
                num_kept[model, each.facts.pop] += 1
    loads: list[Change] = []
    unplaced: list[Unplaced] = []
    for target in _by_priority(inputs, targets):
        facts, missing = inputs.models[target.model], 0
        for _ in range(target.num_replicas - num_kept[target.model, target.pop]):
            room = _find_room(inputs, rooms, facts, target)
            if room is None:
                missing += 1
                continue
            room.free -= room.need(facts)
            room.busy += _load(inputs, target)
            room.kept.add(facts.name)
            kept[room.facts.node_id].add(facts.name)
            reason = target.reason
            if room.facts.pop != target.pop:
                guests[facts.name, room.facts.pop] += 1
                reason = f"{target.pop} is full ({reason})"
            if facts.name not in room.facts.loaded:
                loads.append(Change("load", facts.name, room.facts.node_id, room.facts.pop, reason))
        if missing:
            size = f"no node near {target.pop} has {facts.memory_bytes / 1e9:.1f} GB free for another {facts.name}"
            unplaced.append(Unplaced(target.model, target.pop, missing, size))
    return loads, unplaced


def _by_priority(inputs: Inputs, targets: list[Target]) -> list[Target]:
    """Return the targets with reserved capacity and rules first, then by demand per byte."""
    ruled = {(each.model, each.pop) for each in inputs.reservations}
    ruled |= {(each.model, each.pop) for each in inputs.overrides}

    def key(target: Target) -> tuple[bool, float, str, str]:
        is_ruled = (target.model, target.pop) in ruled or (target.model, EVERYWHERE) in ruled
        worth = target.tokens_per_s / max(1, inputs.models[target.model].memory_bytes)
        return not is_ruled, -worth, target.model, target.pop

    return sorted(targets, key=key)


def _find_room(
    inputs: Inputs, rooms: dict[str, dict[str, _NodeRoom]], facts: ModelFacts, target: Target
) -> _NodeRoom | None:
    """Return the node for a new replica: in the PoP or in the nearest one with room and time; or else with room."""
    pop, load = target.pop, _load(inputs, target)
    others = [each for each in inputs.neighbors.get(pop, ())[:MAX_OVERFLOW_POPS] if each != pop]
    for most_busy in (inputs.policy.most_busy, math.inf):
        for near in (pop, *others):
            fitting = [
                each for each in rooms.get(near, {}).values() if each.busy + load <= most_busy and each.fits(facts)
            ]
            if fitting:
                return max(fitting, key=lambda room: _worth(room, facts))
    return None


def _worth(room: _NodeRoom, facts: ModelFacts) -> tuple[bool, float, float, bytes]:
    """Return the value of a node for a new replica: a node that still has the model loaded as surplus needs no load;
    then the node with the most time and memory is the best."""
    is_loaded = facts.name in room.facts.loaded
    return is_loaded, -round(room.busy, 1), room.free, _hash(facts.name, room.facts.node_id)


def _pins(inputs: Inputs, kept: dict[str, set[str]]) -> list[Change]:
    """Return the pins and unpins that make the nodes agree with the overrides."""
    pinned = {(rule.model, rule.pop) for rule in inputs.overrides if rule.is_pinned}
    ruled = {rule.model for rule in inputs.overrides}
    changes = []
    for node in (each for each in inputs.nodes if each.can_pin):
        for model in node.loaded:
            is_wanted = (model, node.pop) in pinned or (model, EVERYWHERE) in pinned
            if is_wanted and model in kept[node.node_id] and model not in node.pinned:
                changes.append(Change("pin", model, node.node_id, node.pop, "pinned by override"))
            elif not is_wanted and model in node.pinned and model in ruled:
                changes.append(Change("unpin", model, node.node_id, node.pop, "no longer pinned by override"))
    return changes


def _surplus_reason(target: Target | None) -> str:
    return "no demand" if target is None else target.reason


def _hash(model: str, node_id: str) -> bytes:
    return hashlib.blake2b(f"{model}\0{node_id}".encode(), digest_size=8).digest()
