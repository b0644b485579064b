"""Replica policy: which models share a device's memory, and which one is evicted for another.

Weights and KV caches share one budget in bytes. A model needs its weights and at least its KV floor, and gets up to its
KV share of what is free. Models in use, loading or pinned are never evicted; of the others, the one with the least
value per byte goes first: its demand times the seconds that a reload would take. An evicted model can sleep in host
memory, which has a budget of its own.

Pure functions and one counter. The caller supplies the models and the clock, which may be virtual.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

DEMAND_HALF_LIFE_S = 300.0
IDLE_AFTER_S = 60.0  # seconds without a call after which a ready model is reported as idle


class Demand:
    """Calls per minute of one model, decayed exponentially with a half-life of DEMAND_HALF_LIFE_S."""

    def __init__(self) -> None:
        self._count = 0.0  # decayed number of calls at `_at_s`
        self._at_s = 0.0

    def add(self, now_s: float, num_calls: float = 1.0) -> None:
        """Count calls at the time `now_s`."""
        self._count = self._decayed(now_s) + num_calls
        self._at_s = max(now_s, self._at_s)

    def per_minute(self, now_s: float) -> float:
        """Return the decayed rate at the time `now_s`. A constant rate of calls approaches that rate."""
        return self._decayed(now_s) * math.log(2) / DEMAND_HALF_LIFE_S * 60

    def _decayed(self, now_s: float) -> float:
        return self._count * math.exp2(-max(0.0, now_s - self._at_s) / DEMAND_HALF_LIFE_S)


@dataclass(frozen=True)
class Budget:
    """Limits of one device: bytes for weights and KV caches, and number of models. 0 bytes means no limit."""

    memory_bytes: int = 0
    max_models: int = 16


@dataclass(frozen=True)
class Need:
    """Memory of a model that is to be loaded. Without a KV cache, both KV sizes are 0.

    A `kv_share_bytes` of None is an equal part of what is free, for each of `num_sharing` models.
    """

    weight_bytes: int
    kv_floor_bytes: int = 0
    kv_share_bytes: int | None = 0
    num_sharing: int = 1


@dataclass(frozen=True)
class Holding:
    """A model that holds memory. `demand` is in calls per minute, `reload_s` the time of its last load in seconds.
    `is_busy`: it is in use, loading or ending, so that its memory cannot be taken now."""

    key: Hashable
    num_bytes: int
    demand: float = 0.0
    reload_s: float = 0.0
    last_used_s: float = 0.0
    is_pinned: bool = False
    is_busy: bool = False


@dataclass(frozen=True)
class Plan:
    """Evict these models, in this order, and give the new model this much memory for its KV cache; 0 if it has none, or
    may take what is free."""

    evicted: tuple[Hashable, ...]
    kv_bytes: int


@dataclass(frozen=True)
class NoRoom:
    """The model cannot be loaded now. `is_temporary`: it could be once models in use become idle."""

    reason: str
    is_temporary: bool


def plan_load(need: Need, held: Iterable[Holding], budget: Budget) -> Plan | NoRoom:
    """Decide what to evict so that a model can be loaded. Evicts only as much as weights and the KV floor need."""
    holdings = list(held)
    floor_bytes = need.weight_bytes + need.kv_floor_bytes
    evicted = _choose_evicted(floor_bytes, holdings, budget)
    if evicted is None:
        return _no_room(floor_bytes, holdings, budget)
    gone = {each.key for each in evicted}
    free_bytes = _free_bytes([each for each in holdings if each.key not in gone], budget)
    kv_bytes = need.kv_share_bytes or 0
    if free_bytes is not None:
        left_bytes = free_bytes - need.weight_bytes
        wanted_bytes = left_bytes // need.num_sharing if need.kv_share_bytes is None else need.kv_share_bytes
        kv_bytes = max(need.kv_floor_bytes, min(wanted_bytes, left_bytes))
    return Plan(tuple(each.key for each in evicted), kv_bytes)


def plan_sleep(num_bytes: int, asleep: Iterable[Holding], budget_bytes: int) -> tuple[Hashable, ...] | None:
    """Decide which sleeping models to evict so that the weights of another one fit into `budget_bytes` of host memory.

    Return them, least recently used first, or None if the weights do not fit. Busy models are never evicted.
    """
    holdings = list(asleep)
    free_bytes = budget_bytes - sum(each.num_bytes for each in holdings)
    evicted: list[Hashable] = []
    for each in sorted(holdings, key=lambda holding: holding.last_used_s):
        if num_bytes <= free_bytes:
            break
        if not (each.is_busy or each.is_pinned):
            evicted.append(each.key)
            free_bytes += each.num_bytes
    return tuple(evicted) if num_bytes <= free_bytes else None


def eviction_order(held: Iterable[Holding]) -> list[Holding]:
    """Return the models that may be evicted, least valuable first."""
    return sorted((each for each in held if not (each.is_pinned or each.is_busy)), key=_value)


def _value(holding: Holding) -> tuple[float, float]:
    """Return the value of staying loaded: expected seconds of loading saved per minute and byte, then the last use."""
    return holding.demand * holding.reload_s / max(1, holding.num_bytes), holding.last_used_s


def _choose_evicted(num_bytes: int, held: list[Holding], budget: Budget) -> list[Holding] | None:
    """Return the models to evict, least valuable first, without those whose memory turns out not to be needed; None if
    evicting all that may be evicted is not enough."""
    evicted: list[Holding] = []
    for candidate in eviction_order(held):
        if _fits(num_bytes, held, evicted, budget):
            break
        evicted.append(candidate)
    if not _fits(num_bytes, held, evicted, budget):
        return None
    for spared in reversed(evicted.copy()):  # small models that were chosen before a large one made the room
        others = [each for each in evicted if each is not spared]
        if _fits(num_bytes, held, others, budget):
            evicted = others
    return evicted


def _fits(num_bytes: int, held: list[Holding], evicted: list[Holding], budget: Budget) -> bool:
    gone = {each.key for each in evicted}
    staying = [each for each in held if each.key not in gone]
    free_bytes = _free_bytes(staying, budget)
    return len(staying) < budget.max_models and (free_bytes is None or num_bytes <= free_bytes)


def _free_bytes(held: Iterable[Holding], budget: Budget) -> int | None:
    """Return the free bytes of the budget, or None if memory is not limited."""
    return budget.memory_bytes - sum(each.num_bytes for each in held) if budget.memory_bytes else None


def _no_room(num_bytes: int, held: list[Holding], budget: Budget) -> NoRoom:
    fixed = [each for each in held if each.is_pinned]
    if _fits(num_bytes, fixed, [], budget):
        return NoRoom("all loaded models are in use", is_temporary=True)
    if budget.memory_bytes and num_bytes > budget.memory_bytes:
        reason = f"the model needs {num_bytes} bytes, and the node has {budget.memory_bytes} for weights and KV caches"
    else:
        pinned_bytes = sum(each.num_bytes for each in fixed)
        reason = f"the model needs {num_bytes} bytes beside {len(fixed)} pinned models with {pinned_bytes} bytes"
    return NoRoom(reason, is_temporary=False)
