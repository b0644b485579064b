"""The block manager: one state a block, counted references, nobody reads what another tenant or nobody wrote."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.scheduling import block_manager as module


class BlockManager(module.BlockManager):
    """One that proves its integrity after every operation."""

    def acquire(self, *arguments: Any) -> None:
        super().acquire(*arguments)
        self.check_integrity()

    def allocate(self, *arguments: Any) -> np.ndarray:
        blocks = super().allocate(*arguments)
        self.check_integrity()
        return blocks

    def release(self, *arguments: Any) -> None:
        super().release(*arguments)
        self.check_integrity()

    def register(self, *arguments: Any) -> None:
        super().register(*arguments)
        self.check_integrity()

    def unregister(self, *arguments: Any) -> None:
        super().unregister(*arguments)
        self.check_integrity()


def name(number: int) -> bytes:
    return number.to_bytes(16, "little")


def named(blocks: BlockManager, numbers: list[int]) -> np.ndarray:
    """New held blocks with these names."""
    ids = blocks.allocate(len(numbers))
    for block, number in zip(ids.tolist(), numbers, strict=True):
        blocks.register(block, name(number))
    return ids


def names(*numbers: int) -> list[bytes]:
    return [name(number) for number in numbers]


def test_blocks_without_a_name_are_free_again_once_released():
    blocks = BlockManager(4)
    ids = blocks.allocate(3)
    assert sorted(ids.tolist()) == [0, 1, 2]
    blocks.release(ids)
    assert (blocks.num_free, blocks.num_cached, blocks.num_in_use) == (4, 0, 0)


def test_named_blocks_stay_findable_after_their_release():
    blocks = BlockManager(4)
    ids = named(blocks, [1, 2])
    blocks.release(ids)
    assert (blocks.num_free, blocks.num_cached) == (2, 2)
    assert blocks.match(names(1, 2, 3)).tolist() == ids.tolist()


def test_a_match_ends_at_the_first_gap():
    blocks = BlockManager(4)
    ids = named(blocks, [1, 3])
    assert blocks.match(names(1, 2, 3)).tolist() == ids[:1].tolist()
    assert blocks.match(names(2, 3)).tolist() == []


def test_sharing_copies_nothing_and_frees_nothing_before_the_last_holder():
    blocks = BlockManager(4)
    ids = named(blocks, [1, 2])
    blocks.acquire(blocks.match(names(1, 2)))
    assert blocks.num_in_use == 2
    blocks.release(ids)
    assert blocks.num_in_use == 2
    blocks.release(ids)
    assert blocks.num_cached == 2
    blocks.check_integrity([])


def test_the_least_recently_released_block_is_evicted_first_and_a_tail_before_its_prefix():
    blocks = BlockManager(4)
    old, new = named(blocks, [1, 2]), named(blocks, [3, 4])
    blocks.release(old)
    blocks.release(new)
    evicted = [int(blocks.allocate(1)[0]) for _ in range(4)]
    assert evicted == [old[1], old[0], new[1], new[0]]
    assert blocks.match(names(1)).tolist() == []


def test_a_hit_makes_a_block_young_again():
    blocks = BlockManager(3)
    first, second = named(blocks, [1]), named(blocks, [2])
    blocks.release(first)
    blocks.release(second)
    blocks.acquire(first)
    blocks.release(first)
    assert blocks.allocate(2).tolist() == [2, second[0]]


def test_free_blocks_go_before_cached_ones():
    blocks = BlockManager(3)
    blocks.release(named(blocks, [1]))
    blocks.allocate(2)
    assert blocks.num_cached == 1


def test_a_second_block_of_the_same_name_stays_nameless():
    blocks = BlockManager(3)
    first, second = named(blocks, [1]), named(blocks, [1])
    assert blocks.find(name(1)) == first[0]
    blocks.release(second)
    assert blocks.num_free == 2


def test_forgotten_blocks_are_found_by_nobody_and_free_once_their_last_holder_leaves():
    blocks = BlockManager(3)
    held = named(blocks, [1, 2])
    blocks.acquire(held)
    blocks.unregister(held)
    assert blocks.match(names(1, 2)).tolist() == []
    blocks.release(held)
    assert (blocks.num_free, blocks.num_in_use) == (1, 2)
    blocks.release(held)
    assert (blocks.num_free, blocks.num_cached) == (3, 0)


def test_more_than_there_is_cannot_be_allocated():
    with pytest.raises(AssertionError):
        BlockManager(2).allocate(3)


def test_integrity_notices_a_block_held_twice():
    blocks = BlockManager(2)
    ids = blocks.allocate(1)
    blocks.check_integrity([ids])
    with pytest.raises(AssertionError, match="reference counts"):
        blocks.check_integrity([ids, ids])


@dataclass(eq=False)
class Held:
    """One sequence: its tenant, the names that its full blocks get, its blocks, and how many of them are written."""

    tenant: int
    names: list[bytes]
    blocks: np.ndarray
    num_written: int


class Sequences(RuleBasedStateMachine):
    """Sequences of three tenants come, are computed chunk by chunk, grow, fork, are preempted, cancelled and disowned
    at any point, in a pool that is plenty or a quarter of that; a model of plain dicts says what must be so."""

    @initialize(num_blocks=st.sampled_from([24, 6]))
    def start(self, num_blocks: int) -> None:
        self.blocks = BlockManager(num_blocks)
        self.held: list[Held] = []
        self.preempted: list[Held] = []
        self.content: dict[int, bytes | None] = {}  # block -> name of what was last written to it, None if nothing

    def run(self, tenant: int, wanted: list[bytes]) -> Held | None:
        """Admit a sequence with these names, if it fits."""
        matched = self.blocks.match(wanted)
        read = [self.content[block] for block in matched.tolist()]
        assert read == wanted[: len(matched)], "what was found is not what was written, or another tenant's"
        num_new = len(wanted) + 1 - len(matched)
        if num_new + self.blocks.count_cached(matched) > self.blocks.num_available:
            return None
        self.blocks.acquire(matched)
        one = Held(tenant, wanted, np.concatenate([matched, self.take(num_new)]), len(matched))
        self.held.append(one)
        return one

    def take(self, count: int) -> np.ndarray:
        used = {int(block) for one in self.held for block in one.blocks}
        fresh = self.blocks.allocate(count)
        assert not used & set(fresh.tolist()), "a held block was given away"
        self.content |= dict.fromkeys(fresh.tolist(), None)
        return fresh

    def pick(self, data: st.DataObject) -> Held:
        return data.draw(st.sampled_from(self.held))

    @rule(tenant=st.integers(0, 2), prefix=st.integers(0, 3), length=st.integers(1, 8))
    def admit(self, tenant: int, prefix: int, length: int) -> None:
        self.run(tenant, names(*(tenant * 1000 + prefix * 100 + i for i in range(length))))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), count=st.integers(1, 4))
    def compute(self, data: st.DataObject, count: int) -> None:
        """A chunk: the next blocks are written in full, and offered to others."""
        one = self.pick(data)
        for index in range(one.num_written, min(one.num_written + count, len(one.names))):
            block = int(one.blocks[index])
            self.content[block] = one.names[index]
            self.blocks.register(block, one.names[index])
            one.num_written += 1

    @precondition(lambda self: self.held and self.blocks.num_available)
    @rule(data=st.data())
    def extend(self, data: st.DataObject) -> None:
        one = self.pick(data)
        one.blocks = np.concatenate([one.blocks, self.take(1)])

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        """Another sequence goes on from here: what can be found is shared, the rest is a copy."""
        one = self.pick(data)
        copy = self.run(one.tenant, one.names[: one.num_written])
        if copy is not None:
            shared = set(copy.blocks.tolist()) & set(one.blocks.tolist())
            assert all(self.content[block] for block in shared), "a block that is still being written is shared"

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        """It ended or was cancelled, be it in the middle of a chunked prefill."""
        self.leave_with(self.pick(data))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        one = self.pick(data)
        self.leave_with(one)
        self.preempted.append(one)

    def leave_with(self, one: Held) -> None:
        self.held.remove(one)
        self.blocks.release(one.blocks, bytes([one.tenant]))

    @precondition(lambda self: self.preempted)
    @rule()
    def resume(self) -> None:
        if self.run(self.preempted[0].tenant, self.preempted[0].names) is not None:
            self.preempted.pop(0)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def disown(self, data: st.DataObject) -> None:
        one = self.pick(data)
        self.blocks.unregister(one.blocks)
        known = {self.blocks.find(block_name) for block_name in one.names}
        assert not known & set(one.blocks.tolist()), "what was disowned is found"

    @rule()
    def evict_everything(self) -> None:
        """Somebody needs all that can be had."""
        taken = self.take(self.blocks.num_available)
        assert self.blocks.num_cached == 0
        self.blocks.release(taken)

    @invariant()
    def every_block_has_one_state(self) -> None:
        blocks = self.blocks
        blocks.check_integrity([one.blocks for one in self.held])
        assert blocks.num_free + blocks.num_cached + blocks.num_in_use == blocks.num_blocks

    @invariant()
    def a_name_leads_to_what_was_written_under_it(self) -> None:
        for tenant in range(3):
            for number in range(tenant * 1000, tenant * 1000 + 400, 100):
                found = self.blocks.find(name(number))
                assert found is None or self.content[found] == name(number)

    @invariant()
    def no_tenant_holds_another_s_block(self) -> None:
        tenants: dict[int, int] = {}
        for one in self.held:
            assert all(tenants.setdefault(block, one.tenant) == one.tenant for block in one.blocks.tolist())


TestSequences = Sequences.TestCase
