"""What-if analysis: compare the present scaling plan with the plan for one PoP more or less. Pure functions."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import NamedTuple

from gateway.nodes.geography import Point
from gateway.scaling.distances import find_neighbors
from gateway.scaling.inputs import Inputs, Key, NodeFacts, Plan
from gateway.scaling.plan import make_plan

MAX_ADDED_NODES = 1000


class NewPop(NamedTuple):
    """A PoP to add: its nodes are like the largest node of the present."""

    pop: str
    num_nodes: int
    point: Point | None = None


@dataclass(frozen=True)
class Difference:
    """Replicas of one model in one PoP, now and then."""

    model: str
    pop: str
    num_before: int
    num_after: int
    reason: str


@dataclass(frozen=True)
class WhatIf:
    """The plan after the change, and where it differs from the plan of the present."""

    plan: Plan
    differences: tuple[Difference, ...]


def lose_pop(inputs: Inputs, pop: str) -> Inputs:
    """Return the inputs after the loss of a PoP: its nodes are gone, and its callers are served by the nearest PoP
    left."""
    return replace(
        inputs,
        nodes=[node for node in inputs.nodes if node.pop != pop],
        neighbors={
            each: [other for other in others if other != pop] for each, others in inputs.neighbors.items()
        },
        reservations=[each for each in inputs.reservations if each.pop != pop],
        levels={key: level for key, level in inputs.levels.items() if key[1] != pop},
    )  # fmt: skip


def add_pop(inputs: Inputs, new: NewPop, points: dict[str, Point | None]) -> Inputs:
    """Return the inputs with another PoP. The demand of a PoP without nodes moves there if it is nearest."""
    like = max(inputs.nodes, key=lambda node: (node.memory_bytes, node.node_id), default=None)
    tasks = frozenset(task for node in inputs.nodes for task in node.tasks)
    added = [
        NodeFacts(f"{new.pop}-new-{number}", new.pop, like.memory_bytes if like is not None else 0, tasks)
        for number in range(1, new.num_nodes + 1)
    ]
    nodes = [*inputs.nodes, *added]
    names = {*inputs.neighbors, new.pop}
    neighbors = find_neighbors(
        {pop: points.get(pop) for pop in names} | {new.pop: new.point or points.get(new.pop)},
        {node.pop for node in nodes},
    )
    return replace(inputs, nodes=nodes, neighbors=neighbors)


def compare(before: Inputs, after: Inputs) -> WhatIf:
    """Return the plan after the change, compared with that of the present. The delay of lower targets is left out, so
    that the result is what the plans settle at."""
    settled = replace(before.policy, down_delay_s=0.0)
    plan_before, plan_after = make_plan(replace(before, policy=settled)), make_plan(replace(after, policy=settled))
    counts_before, counts_after = _counts(before, plan_before), _counts(after, plan_after)
    reasons = {(target.model, target.pop): target.reason for target in (*plan_before.targets, *plan_after.targets)}
    differences = [
        Difference(model, pop, counts_before[model, pop], counts_after[model, pop], reasons.get((model, pop), ""))
        for model, pop in sorted(counts_before.keys() | counts_after.keys())
        if counts_before[model, pop] != counts_after[model, pop]
    ]
    return WhatIf(plan_after, tuple(differences))


def _counts(inputs: Inputs, plan: Plan) -> Counter[Key]:
    """Return the number of replicas by model and PoP once the plan's changes are made."""
    counts: Counter[Key] = Counter((model, node.pop) for node in inputs.nodes for model in node.loaded)
    for change in plan.changes:
        if change.action in ("load", "unload"):
            counts[change.model, change.pop] += 1 if change.action == "load" else -1
    return Counter({key: number for key, number in counts.items() if number})
