"""Virtual token counters: the least served tenant is next, and idling does not accumulate credit."""

from __future__ import annotations

import numpy as np

from engine.scheduling.fairness import TenantCounters


def test_weights_are_one_for_prompt_two_for_completion_and_a_tenth_for_cached_tokens():
    counters = TenantCounters()
    index = counters.join(7)
    counters.charge_prompt(index, 100, 50)
    counters.charge_completion(np.array([index, index], dtype=np.int32))
    assert counters.served[index] == 100 + 5 + 4


def test_a_tenant_keeps_its_counter_while_it_has_open_sequences():
    counters = TenantCounters()
    first = counters.join(7)
    counters.charge_prompt(first, 100, 0)
    assert counters.join(7) == first
    counters.leave(first)
    assert counters.join(7) == first
    assert counters.served[first] == 100


def test_new_tenant_starts_at_the_counter_of_the_least_served_active_tenant():
    counters = TenantCounters()
    busy, busier = counters.join(1), counters.join(2)
    counters.charge_prompt(busy, 500, 0)
    counters.charge_prompt(busier, 900, 0)
    assert counters.served[counters.join(3)] == 500


def test_returning_from_idle_forgives_no_debt_and_grants_no_credit():
    counters = TenantCounters()
    rich, other = counters.join(1), counters.join(2)
    counters.charge_prompt(rich, 900, 0)
    counters.charge_prompt(other, 500, 0)
    counters.leave(rich)
    assert counters.served[counters.join(1)] == 900
    counters.leave(other)
    counters.charge_prompt(rich, 900, 0)
    assert counters.served[counters.join(2)] == 1800


def test_newcomer_starts_at_the_counter_of_the_last_active_tenant():
    counters = TenantCounters()
    index = counters.join(1)
    counters.charge_prompt(index, 300, 0)
    counters.leave(index)
    assert counters.served[counters.join(2)] == 300


def test_memory_for_idle_tenants_is_bounded():
    counters = TenantCounters()
    stays = counters.join(-1)
    for tenant in range(10_000):
        counters.leave(counters.join(tenant))
    assert len(counters.served) <= 8_192
    assert counters.join(-1) == stays
