"""The replicas of a simulated day: the autoscaler's plan every 20 minutes, applied to the nodes, beside the plans of an
oracle that knows the demand of each tick and adds and removes replicas without delay or tolerance."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bench.fabric.world import MEAN_CALL_TOKENS, NODE_BYTES, NUM_TICKS, TASK, TICK_S, World
from gateway.scaling.inputs import Change, Demand, Inputs, Key, Level, NodeFacts, Policy
from gateway.scaling.plan import make_plan
from gateway.scaling.targets import find_targets

FORGET_S = 7200.0
NUM_WARM_UP = 9  # ticks before the day begins
OUTAGE_TICKS = range(36, 39)  # 12:00 to 13:00 UTC


@dataclass
class Day:
    """Loaded models of each node by tick, and counts of replicas weighted by memory (bytes × ticks)."""

    loaded: list[list[frozenset[str]]]
    lost_pops: frozenset[str]
    num_changes: int
    num_unplaced: int
    planned_bytes: np.ndarray  # [ticks]
    oracle_bytes: np.ndarray
    static_bytes: float  # replicas of each model and PoP at their daily maximum, all day
    plan_s: list[float]  # duration of each plan


def make_day(world: World, *, has_outage: bool, seed: int = 2, policy: Policy | None = None) -> Day:
    """Return the replicas of a day that begins after a warm-up of half a day."""
    generator = np.random.default_rng(seed)
    policy = policy or Policy(usable_memory=1.0)
    tasks = frozenset({TASK})
    nodes = [NodeFacts(f"node-{number:04d}", pop, NODE_BYTES, tasks) for number, pop in enumerate(world.node_pops)]
    lost = frozenset(generator.choice(world.pops, len(world.pops) // 10, replace=False)) if has_outage else frozenset()
    idle_s = np.full(world.shares.shape, FORGET_S)
    day = Day([], lost, 0, 0, np.zeros(NUM_TICKS), np.zeros(NUM_TICKS), 0.0, [])
    highest: dict[tuple[str, str], int] = {}
    levels: dict[Key, Level] = {}
    for step in range(-NUM_WARM_UP, NUM_TICKS):
        tick = step % NUM_TICKS
        rates = world.demand(tick)
        calls = generator.poisson(rates * TICK_S / MEAN_CALL_TOKENS)
        idle_s = np.where(calls > 0, 0.0, idle_s + TICK_S)
        demand = _demand(world, rates, idle_s)
        is_lost = step >= 0 and tick in OUTAGE_TICKS
        living = [node for node in nodes if not (is_lost and node.pop in lost)]
        neighbors = world.neighbors
        if is_lost:
            neighbors = {pop: [each for each in others if each not in lost] for pop, others in neighbors.items()}
        inputs = Inputs(step * TICK_S, demand, living, world.models, neighbors, levels=levels, policy=policy)
        started_s = time.perf_counter()
        plan = make_plan(inputs)
        if step >= 0:
            day.plan_s.append(time.perf_counter() - started_s)
        levels = dict(plan.levels)
        nodes = _applied(world, nodes, plan.changes)
        if step < 0:
            continue
        day.num_changes += sum(change.action in ("load", "unload") for change in plan.changes)
        day.num_unplaced += sum(each.num_replicas for each in plan.unplaced)
        day.loaded.append([frozenset() if is_lost and node.pop in lost else frozenset(node.loaded) for node in nodes])
        day.planned_bytes[tick] = sum(world.models[model].memory_bytes for node in nodes for model in node.loaded)
        exact = replace(inputs, levels={}, nodes=[replace(node, loaded={}) for node in living])
        targets, _ = find_targets(replace(exact, policy=replace(policy, tolerance=0.0, down_delay_s=0.0)))
        day.oracle_bytes[tick] = sum(
            target.num_replicas * world.models[target.model].memory_bytes for target in targets
        )
        for target in plan.targets:
            key = target.model, target.pop
            highest[key] = max(highest.get(key, 0), target.num_replicas)
    day.static_bytes = float(sum(world.models[model].memory_bytes * number for (model, _), number in highest.items()))
    return day


def _demand(world: World, rates: np.ndarray, idle_s: np.ndarray) -> list[Demand]:
    """Return the demand as gateways publish it: none for models that nobody has called for two hours."""
    pops, found = world.pops, []
    for row, model in enumerate(world.models):
        for column in np.flatnonzero(idle_s[row] < FORGET_S):
            idle = float(idle_s[row, column])
            rate = float(rates[row, column]) if idle == 0.0 else 0.0
            found.append(Demand(model, pops[column], rate, idle))
    return found


def _applied(world: World, nodes: list[NodeFacts], changes: Sequence[Change]) -> list[NodeFacts]:
    """Return the nodes after the changes of a plan."""
    numbers = {node.node_id: number for number, node in enumerate(nodes)}
    loaded: dict[int, dict[str, int]] = {}
    for change in changes:
        number = numbers[change.node_id]
        models = loaded.setdefault(number, dict(nodes[number].loaded))
        if change.action == "load":
            models[change.model] = world.models[change.model].memory_bytes
        elif change.action == "unload":
            models.pop(change.model, None)
    return [replace(node, loaded=loaded[number]) if number in loaded else node for number, node in enumerate(nodes)]
