"""Targets: how many replicas each model shall have in each PoP, with the reason. Pure functions.

Demand is collected at the PoPs that host a model, converted to replicas, limited by the operator's rules, and smoothed:
a target rises at once and falls after a delay. `plan.py` chooses the nodes.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gateway.scaling.inputs import Demand, Inputs, Key, Level, ModelFacts, Policy, Target
from tenants.scaling_rules import EVERYWHERE, Override


@dataclass(slots=True)
class _Share:
    """The demand of one model that one PoP hosts."""

    tokens_per_s: float = 0.0
    num_pops: int = 0
    reserved_tokens_per_s: float = 0.0


def find_targets(inputs: Inputs) -> tuple[list[Target], dict[Key, Level]]:
    """Return the targets, and the levels for the next plan. A model and PoP without replicas, demand or rule has
    neither."""
    current = count_replicas(inputs)
    demand: dict[str, list[Demand]] = defaultdict(list)
    for each in inputs.demand:
        demand[each.model].append(each)
    keys: dict[str, set[str]] = defaultdict(set)
    for model, pop in (*current, *inputs.levels):
        keys[model].add(pop)
    overrides = _by_model(inputs.overrides)
    reserved = {each.model for each in inputs.reservations}
    neighbors = _Neighbors(inputs.neighbors)
    targets: list[Target] = []
    levels: dict[Key, Level] = {}
    for model in sorted({*keys, *demand, *overrides, *reserved}):
        facts = inputs.models.get(model)
        if facts is None:  # no longer in the catalog
            continue
        calls = demand.get(model, [])
        shares = _shares(inputs, facts, calls, neighbors)
        idle_s = min((each.idle_s for each in calls), default=None)
        rules = overrides.get(model, {})
        pops = {*keys[model], *shares, *(pop for pop in rules if pop != EVERYWHERE)}
        found = {
            pop: _target(inputs, facts, pop, shares.get(pop), current.get((model, pop), 0), idle_s, rules, levels)
            for pop in sorted(pops)
        }
        _limit_total(inputs, facts, found, rules.get(EVERYWHERE), levels)
        targets += [each for each in found.values() if each.num_replicas or each.num_current]
    return targets, {key: level for key, level in levels.items() if level.num_replicas}


def count_replicas(inputs: Inputs) -> dict[Key, int]:
    """Return the number of replicas that are ready or loading, by model and PoP."""
    counts: dict[Key, int] = defaultdict(int)
    for node in inputs.nodes:
        for model in node.loaded:
            counts[model, node.pop] += 1
    return dict(counts)


def _by_model(overrides: Iterable[Override]) -> dict[str, dict[str, Override]]:
    found: dict[str, dict[str, Override]] = defaultdict(dict)
    for each in overrides:
        found[each.model][each.pop] = each
    return dict(found)


def _shares(inputs: Inputs, facts: ModelFacts, demand: Iterable[Demand], neighbors: _Neighbors) -> dict[str, _Share]:
    """Return the demand of a model by the PoP that hosts it. A PoP without nodes hosts nothing."""
    local: dict[str, _Share] = defaultdict(_Share)
    for each in demand:
        pop = next(iter(inputs.neighbors.get(each.pop, ())), None)
        if pop is not None and each.idle_s < inputs.policy.idle_s:
            local[pop].tokens_per_s += each.tokens_per_s
            local[pop].num_pops += 1
    active = list(local)
    for reservation in inputs.reservations:
        if reservation.model == facts.name and reservation.tokens_per_s > 0:
            local[reservation.pop].reserved_tokens_per_s += reservation.tokens_per_s
    least = inputs.policy.own_share * facts.tokens_per_s
    hosts = {pop for pop, share in local.items() if share.reserved_tokens_per_s or share.tokens_per_s >= least}
    if not hosts and active:
        hosts = {max(active, key=lambda pop: (local[pop].tokens_per_s, pop))}
    return _pooled(neighbors, local, hosts)


def _pooled(neighbors: _Neighbors, local: Mapping[str, _Share], hosts: set[str]) -> dict[str, _Share]:
    """Return the shares of the hosts, each with the demand of the PoPs to which it is the nearest host."""
    pooled = {pop: local[pop] for pop in hosts}
    for pop, share in local.items():
        if pop in hosts:
            continue
        host = neighbors.nearest(pop, hosts)
        if host is not None:
            pooled[host].tokens_per_s += share.tokens_per_s
            pooled[host].num_pops += share.num_pops
    return pooled


class _Neighbors:
    """Finds the nearest of some PoPs quickly, whether they are few or many."""

    def __init__(self, neighbors: Mapping[str, Sequence[str]]) -> None:
        self._neighbors = neighbors
        self._ranks: dict[str, dict[str, int]] = {}

    def nearest(self, pop: str, hosts: set[str]) -> str | None:
        """Return the nearest of `hosts`, or None if none of them has nodes."""
        near = self._neighbors.get(pop, ())
        if len(hosts) * len(hosts) > len(near):  # then one of the first is a host
            return next((each for each in near if each in hosts), None)
        ranks = self._ranks.get(pop)
        if ranks is None:
            ranks = self._ranks[pop] = {each: rank for rank, each in enumerate(near)}
        return min((each for each in hosts if each in ranks), key=ranks.__getitem__, default=None)


def _target(
    inputs: Inputs,
    facts: ModelFacts,
    pop: str,
    share: _Share | None,
    num_current: int,
    idle_s: float | None,
    rules: Mapping[str, Override],
    levels: dict[Key, Level],
) -> Target:
    """Return one target, and store its level."""
    policy, key = inputs.policy, (facts.name, pop)
    before = inputs.levels.get(key, Level(num_current))
    num_own = num_current - before.num_guests
    if num_own > before.num_replicas:  # loaded for a call, or by an operator
        before = Level(num_own, before.lower_since_s, before.lower_max)
    wanted, reason, delay_s = _wanted(policy, facts, share, before.num_replicas, idle_s)
    rule = rules.get(pop)
    wanted, reason = _limited(wanted, reason, rule)
    level = _smoothed(before, wanted, inputs.now_s, delay_s)
    if rule is not None and rule.max_replicas is not None and level.num_replicas > rule.max_replicas:
        level = Level(rule.max_replicas)  # an operator's limit applies at once
    if level.num_replicas > wanted and level.lower_since_s is not None:
        remaining_s = max(0.0, delay_s - (inputs.now_s - level.lower_since_s))
        reason = f"{wanted} in {remaining_s:.0f} s unless demand rises ({reason})"
    levels[key] = level
    tokens_per_s = 0.0 if share is None else share.tokens_per_s
    return Target(facts.name, pop, level.num_replicas, num_current, tokens_per_s, reason)


def _wanted(
    policy: Policy, facts: ModelFacts, share: _Share | None, num_before: int, idle_s: float | None
) -> tuple[int, str, float]:
    """Return the replicas that the demand needs now, why, and the seconds for which a lower number must last before it
    applies. `idle_s` is the time since the last call to the model anywhere, None if no gateway knows."""
    if share is None:
        if idle_s is None:  # gateways that have just started know no earlier calls
            return 0, "no call known", policy.idle_s
        if idle_s >= policy.idle_s:
            return 0, f"no call for {idle_s:.0f} s", 0.0
        return 0, "demand is small here and is served by another PoP", policy.down_delay_s
    speed = facts.tokens_per_s * policy.target_utilization
    tokens_per_s = share.tokens_per_s + share.reserved_tokens_per_s
    wanted = max(1, math.ceil(tokens_per_s / speed))
    if 0 < num_before < wanted and tokens_per_s <= num_before * speed * (1 + policy.tolerance):
        wanted = num_before
    reserved = f", {share.reserved_tokens_per_s:.0f} of them reserved" if share.reserved_tokens_per_s else ""
    pops = f" from {share.num_pops} PoPs" if share.num_pops > 1 else ""
    reason = f"{tokens_per_s:.0f} tokens/s{pops}{reserved}; a replica is planned for {speed:.0f}"
    return wanted, reason, policy.down_delay_s


def _limited(wanted: int, reason: str, rule: Override | None) -> tuple[int, str]:
    """Apply the operator's rule for a PoP."""
    if rule is None:
        return wanted, reason
    if wanted < rule.least:
        return rule.least, f"at least {rule.least} by override ({reason})"
    if rule.max_replicas is not None and wanted > rule.max_replicas:
        return rule.max_replicas, f"at most {rule.max_replicas} by override ({reason})"
    return wanted, reason


def _smoothed(before: Level, wanted: int, now_s: float, delay_s: float) -> Level:
    """Return the next level: `wanted` if it is not lower, otherwise the highest of the lower plans after the delay."""
    if wanted >= before.num_replicas:
        return Level(wanted)
    if before.lower_since_s is None:
        since_s, highest = now_s, wanted
    else:
        # A clock that was set back must not extend the delay.
        since_s, highest = min(before.lower_since_s, now_s), max(before.lower_max, wanted)
    if now_s - since_s >= delay_s:
        return Level(highest)
    return Level(before.num_replicas, since_s, highest)


def _limit_total(
    inputs: Inputs, facts: ModelFacts, found: dict[str, Target], rule: Override | None, levels: dict[Key, Level]
) -> None:
    """Apply the rule for all PoPs together: add replicas where the demand is largest, remove them where it is
    smallest."""
    if rule is None:
        return
    least = rule.least
    total = sum(target.num_replicas for target in found.values())
    if total < least:
        for _ in range(least - total):
            pop = _best_pop(inputs, facts, found)
            if pop is None:
                return
            _set(found, levels, facts, pop, +1, f"at least {least} in all PoPs by override")
    elif rule.max_replicas is not None:
        for _ in range(total - rule.max_replicas):
            used = [target for target in found.values() if target.num_replicas]
            pop = min(used, key=lambda target: (target.tokens_per_s / target.num_replicas, target.pop)).pop
            _set(found, levels, facts, pop, -1, f"at most {rule.max_replicas} in all PoPs by override")


def _best_pop(inputs: Inputs, facts: ModelFacts, found: Mapping[str, Target]) -> str | None:
    """Return the PoP for one more replica: the most demand per replica, then a replica that is loaded, then the most
    nodes."""
    num_nodes: dict[str, int] = defaultdict(int)
    for node in inputs.nodes:
        num_nodes[node.pop] += facts.task in node.tasks
    pops = [pop for pop, number in num_nodes.items() if number > (found[pop].num_replicas if pop in found else 0)]

    def worth(pop: str) -> tuple[float, int, int, str]:
        target = found.get(pop)
        if target is None:
            return 0.0, 0, num_nodes[pop], pop
        spare = target.num_current - target.num_replicas
        return target.tokens_per_s / (target.num_replicas + 1), spare, num_nodes[pop], pop

    return max(pops, key=worth, default=None)


def _set(
    found: dict[str, Target], levels: dict[Key, Level], facts: ModelFacts, pop: str, step: int, reason: str
) -> None:
    target = found.get(pop, Target(facts.name, pop, 0, 0, 0.0, ""))
    number = target.num_replicas + step
    found[pop] = Target(facts.name, pop, number, target.num_current, target.tokens_per_s, reason)
    levels[facts.name, pop] = Level(number)
