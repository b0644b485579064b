"""The block manager: one state per block, reference counts, and no sharing between tenants or of unwritten blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.scheduling import block_manager as module


class BlockManager(module.BlockManager):
    """A block manager that checks its integrity after every operation."""

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


def hash_of(number: int) -> bytes:
    return number.to_bytes(16, "little")


def registered(blocks: BlockManager, numbers: list[int]) -> np.ndarray:
    """Allocate blocks and register them under these hashes."""
    ids = blocks.allocate(len(numbers))
    for block, number in zip(ids.tolist(), numbers, strict=True):
        blocks.register(block, hash_of(number))
    return ids


def hashes(*numbers: int) -> list[bytes]:
    return [hash_of(number) for number in numbers]


def test_unregistered_blocks_are_free_after_release():
    blocks = BlockManager(4)
    ids = blocks.allocate(3)
    assert sorted(ids.tolist()) == [0, 1, 2]
    blocks.release(ids)
    assert (blocks.num_free, blocks.num_cached, blocks.num_in_use) == (4, 0, 0)


def test_registered_blocks_are_cached_after_release():
    blocks = BlockManager(4)
    ids = registered(blocks, [1, 2])
    blocks.release(ids)
    assert (blocks.num_free, blocks.num_cached) == (2, 2)
    assert blocks.match(hashes(1, 2, 3)).tolist() == ids.tolist()


def test_match_ends_at_the_first_missing_block():
    blocks = BlockManager(4)
    ids = registered(blocks, [1, 3])
    assert blocks.match(hashes(1, 2, 3)).tolist() == ids[:1].tolist()
    assert blocks.match(hashes(2, 3)).tolist() == []


def test_shared_blocks_are_released_by_their_last_user():
    blocks = BlockManager(4)
    ids = registered(blocks, [1, 2])
    blocks.acquire(blocks.match(hashes(1, 2)))
    assert blocks.num_in_use == 2
    blocks.release(ids)
    assert blocks.num_in_use == 2
    blocks.release(ids)
    assert blocks.num_cached == 2
    blocks.check_integrity([])


def test_least_recently_released_block_is_evicted_first_and_a_suffix_before_its_prefix():
    blocks = BlockManager(4)
    old, new = registered(blocks, [1, 2]), registered(blocks, [3, 4])
    blocks.release(old)
    blocks.release(new)
    evicted = [int(blocks.allocate(1)[0]) for _ in range(4)]
    assert evicted == [old[1], old[0], new[1], new[0]]
    assert blocks.match(hashes(1)).tolist() == []


def test_cache_hit_makes_a_block_the_newest():
    blocks = BlockManager(3)
    first, second = registered(blocks, [1]), registered(blocks, [2])
    blocks.release(first)
    blocks.release(second)
    blocks.acquire(first)
    blocks.release(first)
    assert blocks.allocate(2).tolist() == [2, second[0]]


def test_free_blocks_are_allocated_before_cached_ones():
    blocks = BlockManager(3)
    blocks.release(registered(blocks, [1]))
    blocks.allocate(2)
    assert blocks.num_cached == 1


def test_second_block_with_the_same_hash_is_not_registered():
    blocks = BlockManager(3)
    first, second = registered(blocks, [1]), registered(blocks, [1])
    assert blocks.find(hash_of(1)) == first[0]
    blocks.release(second)
    assert blocks.num_free == 2


def test_unregistered_blocks_are_not_found_and_are_freed_by_their_last_user():
    blocks = BlockManager(3)
    shared = registered(blocks, [1, 2])
    blocks.acquire(shared)
    blocks.unregister(shared)
    assert blocks.match(hashes(1, 2)).tolist() == []
    blocks.release(shared)
    assert (blocks.num_free, blocks.num_in_use) == (1, 2)
    blocks.release(shared)
    assert (blocks.num_free, blocks.num_cached) == (3, 0)


def test_allocating_more_than_available_fails():
    with pytest.raises(AssertionError):
        BlockManager(2).allocate(3)


def test_check_integrity_detects_wrong_reference_counts():
    blocks = BlockManager(2)
    ids = blocks.allocate(1)
    blocks.check_integrity([ids])
    with pytest.raises(AssertionError, match="reference counts"):
        blocks.check_integrity([ids, ids])


@dataclass(eq=False)
class Entry:
    """One sequence: tenant, block hashes, blocks, and the number of written blocks."""

    tenant: int
    hashes: list[bytes]
    blocks: np.ndarray
    num_written: int


class Sequences(RuleBasedStateMachine):
    """Sequences of three tenants arrive, are computed in chunks, grow, share blocks, are preempted, aborted and
    unregistered at any point, in a large or a small pool. A model of plain dicts checks the results."""

    @initialize(num_blocks=st.sampled_from([24, 6]))
    def start(self, num_blocks: int) -> None:
        self.blocks = BlockManager(num_blocks)
        self.running: list[Entry] = []
        self.preempted: list[Entry] = []
        self.content: dict[int, bytes | None] = {}  # block -> name of what was last written to it, None if nothing

    def run(self, tenant: int, wanted: list[bytes]) -> Entry | None:
        """Admit a sequence with these block hashes, if it fits."""
        matched = self.blocks.match(wanted)
        read = [self.content[block] for block in matched.tolist()]
        assert read == wanted[: len(matched)], "a matched block has other content"
        num_new = len(wanted) + 1 - len(matched)
        if num_new + self.blocks.count_cached(matched) > self.blocks.num_available:
            return None
        self.blocks.acquire(matched)
        one = Entry(tenant, wanted, np.concatenate([matched, self.take(num_new)]), len(matched))
        self.running.append(one)
        return one

    def take(self, count: int) -> np.ndarray:
        used = {int(block) for one in self.running for block in one.blocks}
        fresh = self.blocks.allocate(count)
        assert not used & set(fresh.tolist()), "a block in use was allocated"
        self.content |= dict.fromkeys(fresh.tolist(), None)
        return fresh

    def pick(self, data: st.DataObject) -> Entry:
        return data.draw(st.sampled_from(self.running))

    @rule(tenant=st.integers(0, 2), prefix=st.integers(0, 3), length=st.integers(1, 8))
    def admit(self, tenant: int, prefix: int, length: int) -> None:
        self.run(tenant, hashes(*(tenant * 1000 + prefix * 100 + i for i in range(length))))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), count=st.integers(1, 4))
    def compute(self, data: st.DataObject, count: int) -> None:
        """Write and register the next blocks."""
        one = self.pick(data)
        for index in range(one.num_written, min(one.num_written + count, len(one.hashes))):
            block = int(one.blocks[index])
            self.content[block] = one.hashes[index]
            self.blocks.register(block, one.hashes[index])
            one.num_written += 1

    @precondition(lambda self: self.running and self.blocks.num_available)
    @rule(data=st.data())
    def extend(self, data: st.DataObject) -> None:
        one = self.pick(data)
        one.blocks = np.concatenate([one.blocks, self.take(1)])

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        """Start a sequence with the same written prefix: registered blocks are shared."""
        one = self.pick(data)
        copy = self.run(one.tenant, one.hashes[: one.num_written])
        if copy is not None:
            shared = set(copy.blocks.tolist()) & set(one.blocks.tolist())
            assert all(self.content[block] for block in shared), "a block that is still being written is shared"

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        """End a sequence, possibly in the middle of a chunked prefill."""
        self.leave_with(self.pick(data))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        one = self.pick(data)
        self.leave_with(one)
        self.preempted.append(one)

    def leave_with(self, one: Entry) -> None:
        self.running.remove(one)
        self.blocks.release(one.blocks, bytes([one.tenant]))

    @precondition(lambda self: self.preempted)
    @rule()
    def resume(self) -> None:
        if self.run(self.preempted[0].tenant, self.preempted[0].hashes) is not None:
            self.preempted.pop(0)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def unregister(self, data: st.DataObject) -> None:
        one = self.pick(data)
        self.blocks.unregister(one.blocks)
        known = {self.blocks.find(block_hash) for block_hash in one.hashes}
        assert not known & set(one.blocks.tolist()), "an unregistered block is found"

    @rule()
    def evict_everything(self) -> None:
        """Allocate every available block."""
        acquired = self.take(self.blocks.num_available)
        assert self.blocks.num_cached == 0
        self.blocks.release(acquired)

    @invariant()
    def every_block_has_one_state(self) -> None:
        blocks = self.blocks
        blocks.check_integrity([one.blocks for one in self.running])
        assert blocks.num_free + blocks.num_cached + blocks.num_in_use == blocks.num_blocks

    @invariant()
    def a_name_leads_to_what_was_written_under_it(self) -> None:
        for tenant in range(3):
            for number in range(tenant * 1000, tenant * 1000 + 400, 100):
                found = self.blocks.find(hash_of(number))
                assert found is None or self.content[found] == hash_of(number)

    @invariant()
    def no_tenant_holds_another_s_block(self) -> None:
        tenants: dict[int, int] = {}
        for one in self.running:
            assert all(tenants.setdefault(block, one.tenant) == one.tenant for block in one.blocks.tolist())


TestSequences = Sequences.TestCase
