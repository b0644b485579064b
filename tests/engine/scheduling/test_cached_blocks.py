"""The eviction order equals that of a reference implementation, and no tenant can evict another's prefix."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.scheduling.cached_blocks import STAY_TURNOVERS, CachedBlocks
from tests.engine.driver import NAMESPACE, OTHER_NAMESPACE, Driver
from tests.fakes.runner import FakeRunner

POOL = 12


def ints(*blocks: int) -> np.ndarray:
    return np.array(blocks, dtype=np.int32)


class SlowTwin:
    """Reference implementation of the eviction rule with lists."""

    def __init__(self) -> None:
        self.blocks: dict[bytes, list[tuple[int, int]]] = {}  # owner -> (block, evictions before), oldest first
        self.by_size: list[tuple[bytes, int]] = []  # (owner, number of blocks), in the order they came to have so many
        self.turn: list[bytes] = []
        self.num_evicted = 0

    def change(self, owner: bytes, blocks: list[tuple[int, int]]) -> None:
        self.by_size = [(each, size) for each, size in self.by_size if each != owner]
        self.blocks[owner] = blocks
        if blocks:
            self.by_size.append((owner, len(blocks)))
            self.turn += [] if owner in self.turn else [owner]
        else:
            self.turn.remove(owner)
            del self.blocks[owner]

    def add(self, owner: bytes, blocks: list[int]) -> None:
        self.change(owner, self.blocks.get(owner, []) + [(block, self.num_evicted) for block in blocks])

    def remove(self, owner: bytes, blocks: list[int]) -> None:
        self.change(owner, [each for each in self.blocks[owner] if each[0] not in blocks])

    def evict(self) -> int:
        owner = max(self.by_size, key=lambda each: each[1])[0]
        if len(self.turn) > 1:
            first = self.turn[0]
            if self.num_evicted - self.blocks[first][0][1] >= STAY_TURNOVERS * POOL:
                owner = first
            else:
                self.turn.append(self.turn.pop(0))
        block = self.blocks[owner][0][0]
        self.change(owner, self.blocks[owner][1:])
        self.num_evicted += 1
        return block


@given(data=st.data())
def test_eviction_order_equals_the_reference_implementation(data: st.DataObject) -> None:
    cached, twin, elsewhere = CachedBlocks(POOL), SlowTwin(), list(range(POOL))
    for _ in range(data.draw(st.integers(1, 60))):
        action = data.draw(st.sampled_from(["add", "remove", "evict", "turnover"]))
        owner = bytes([data.draw(st.integers(0, 4))])
        if action == "add" and elsewhere:
            count = data.draw(st.integers(1, len(elsewhere)))
            blocks, elsewhere = elsewhere[:count], elsewhere[count:]
            cached.add(ints(*blocks), owner)
            twin.add(owner, blocks)
        elif action == "remove" and owner in twin.blocks:
            blocks = data.draw(st.sets(st.sampled_from([block for block, _ in twin.blocks[owner]]), min_size=1))
            cached.remove(ints(*blocks))
            twin.remove(owner, list(blocks))
            elsewhere += blocks
        elif action == "evict" and cached.num_blocks:
            elsewhere.append(cached.evict())
            assert elsewhere[-1] == twin.evict()
        elif action == "turnover" and elsewhere:
            for _ in range(POOL * STAY_TURNOVERS // 2):
                cached.add(ints(elsewhere[0]), b"flood")
                twin.add(b"flood", elsewhere[:1])
                elsewhere[0] = cached.evict()
                assert elsewhere[0] == twin.evict()
        assert sorted(cached.check_integrity()) == sorted(set(range(POOL)) - set(elsewhere))


def test_owner_that_fills_the_cache_evicts_its_own_blocks():
    cached = CachedBlocks(POOL)
    cached.add(ints(0, 1, 2), b"quiet")
    cached.add(ints(*range(3, POOL)), b"loud")
    for _ in range(POOL * (STAY_TURNOVERS - 1)):
        block = cached.evict()
        assert block > 2
        cached.add(ints(block), b"loud")


def test_blocks_of_an_absent_owner_are_evicted_eventually():
    cached = CachedBlocks(POOL)
    for owner in range(4):
        cached.add(ints(owner), b"gone" + bytes([owner]))
    cached.add(ints(*range(4, POOL)), b"here")
    given_away = set()
    for _ in range(POOL * STAY_TURNOVERS + 2 * POOL):
        block = cached.evict()
        given_away.add(block)
        cached.add(ints(block), b"here")
    assert given_away == set(range(POOL))


def test_cached_prefix_survives_other_tenants_but_not_its_own_tenants_flood():
    """Tested through the whole engine, where an owner is a namespace."""

    def is_still_cached(flooding: bytes, num_turnovers: int) -> bool:
        driver = Driver(FakeRunner(num_blocks=64))
        prompt = list(range(1, 200))
        driver.add(prompt, max_tokens=1, tenant=1, namespace=NAMESPACE)
        driver.run()
        for number in range(num_turnovers * 64 // 12):
            flood = np.random.default_rng(number).integers(200, 900, 190).tolist()
            driver.add(flood, max_tokens=1, tenant=2, namespace=flooding)
            driver.run()
        again = driver.add(prompt, max_tokens=1, tenant=1, namespace=NAMESPACE)
        driver.run()
        return driver.num_cached[again] > 180

    assert is_still_cached(OTHER_NAMESPACE, STAY_TURNOVERS - 1)
    assert not is_still_cached(NAMESPACE, 2)
    assert not is_still_cached(OTHER_NAMESPACE, STAY_TURNOVERS + 3)


@pytest.mark.parametrize("num_owners", [1, 20_000])
def test_eviction_cost_does_not_depend_on_the_number_of_owners(num_owners: int):
    cached = CachedBlocks(40_000)
    for owner in range(num_owners):
        cached.add(ints(owner), owner.to_bytes(4))
    before = time.process_time()
    num_moves = num_owners // 2 + 1000
    for _ in range(num_moves):
        cached.add(ints(cached.evict()), b"other" if num_owners == 1 else b"new" + cached.num_evicted.to_bytes(4))
    assert (time.process_time() - before) / num_moves < 100e-6  # some 5 µs; looking at every owner would be 1 ms
