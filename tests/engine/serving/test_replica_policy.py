"""The replica policy: what is evicted for a new model, and how much memory its KV cache gets."""

from __future__ import annotations

import random

import pytest

from engine.serving.replica_policy import (
    DEMAND_HALF_LIFE_S,
    Budget,
    Demand,
    Holding,
    Need,
    NoRoom,
    Plan,
    eviction_order,
    plan_load,
)

BUDGET = Budget(memory_bytes=100, max_models=8)


def test_constant_rate_of_calls_is_the_demand() -> None:
    demand = Demand()
    for second in range(0, 7200, 5):
        demand.add(float(second))
    assert demand.per_minute(7200.0) == pytest.approx(12, rel=0.02)
    assert demand.per_minute(7200.0 + DEMAND_HALF_LIFE_S) == pytest.approx(6, rel=0.02)


def test_model_with_the_least_demand_and_reload_time_per_byte_is_evicted_first() -> None:
    busy = Holding("busy", 10, demand=9.0, reload_s=1.0)
    slow = Holding("slow to load", 10, demand=1.0, reload_s=20.0)
    large = Holding("large", 80, demand=9.0, reload_s=1.0)
    assert [each.key for each in eviction_order([slow, busy, large])] == ["large", "busy", "slow to load"]


def test_models_without_demand_are_evicted_by_last_use() -> None:
    held = [Holding(key, 10, last_used_s=used) for key, used in (("a", 3.0), ("b", 1.0), ("c", 2.0))]
    assert [each.key for each in eviction_order(held)] == ["b", "c", "a"]


def test_nothing_is_evicted_for_a_larger_kv_cache() -> None:
    held = [Holding("a", 60)]
    assert plan_load(Need(20, kv_floor_bytes=10, kv_share_bytes=50), held, BUDGET) == Plan((), 20)
    assert plan_load(Need(20, kv_floor_bytes=21, kv_share_bytes=50), held, BUDGET) == Plan(("a",), 50)


def test_small_model_is_spared_if_a_larger_one_must_go_anyway() -> None:
    held = [Holding("small", 10, last_used_s=1.0), Holding("large", 70, last_used_s=2.0)]
    assert plan_load(Need(80), held, BUDGET) == Plan(("large",), 0)


def test_number_of_models_is_limited_too() -> None:
    held = [Holding(number, 1, last_used_s=number) for number in range(8)]
    assert plan_load(Need(1), held, BUDGET) == Plan((0,), 0)


@pytest.mark.parametrize(
    ("held", "is_temporary"),
    [
        ([Holding("a", 50, is_busy=True)], True),
        ([Holding("a", 50, is_pinned=True)], False),
        ([Holding("a", 50, is_busy=True), Holding("b", 10, is_pinned=True)], True),
        ([Holding("a", 50, is_pinned=True, is_busy=True)], False),
    ],
)
def test_models_in_use_and_pinned_models_stay(held: list[Holding], is_temporary: bool) -> None:
    refused = plan_load(Need(60), held, BUDGET)
    assert isinstance(refused, NoRoom)
    assert refused.is_temporary is is_temporary


def test_memory_is_never_exceeded_and_no_eviction_is_needless() -> None:
    choose = random.Random(3)
    for _ in range(2000):
        held = [
            Holding(
                number, choose.randrange(1, 40), demand=choose.random(), reload_s=choose.random(),
                is_pinned=choose.random() < 0.2, is_busy=choose.random() < 0.2,
            )
            for number in range(choose.randrange(6))
        ]  # fmt: skip
        while sum(each.num_bytes for each in held) > BUDGET.memory_bytes:
            held.pop()
        need = Need(choose.randrange(1, 90), kv_floor_bytes=5, kv_share_bytes=20)
        plan = plan_load(need, held, BUDGET)
        fixed = sum(each.num_bytes for each in held if each.is_pinned or each.is_busy)
        assert isinstance(plan, NoRoom) is (fixed + need.weight_bytes + 5 > BUDGET.memory_bytes)
        if isinstance(plan, NoRoom):
            continue
        staying = sum(each.num_bytes for each in held if each.key not in plan.evicted)
        assert 5 <= plan.kv_bytes <= 20
        assert staying + need.weight_bytes + plan.kv_bytes <= BUDGET.memory_bytes
        for each in held:
            if each.key in plan.evicted:
                assert not each.is_pinned
                assert not each.is_busy
                assert staying + each.num_bytes + need.weight_bytes + 5 > BUDGET.memory_bytes, "evicted needlessly"


def test_automatic_kv_cache_is_an_equal_part_of_what_is_free() -> None:
    alone, first_of_three = (plan_load(Need(10, 5, None, count), [], BUDGET) for count in (1, 3))
    assert (alone, first_of_three) == (Plan((), 90), Plan((), 30))
    assert plan_load(Need(10, 5, None), [], Budget()) == Plan((), 0)
    held = [Holding("pinned", 88, is_pinned=True)]
    assert isinstance(plan_load(Need(10, 5, None), held, BUDGET), NoRoom), "less than the floor is free"
