"""The block manager: one state a block, counted references, the oldest cached block goes first."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.block_manager import BlockManager


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
    assert (blocks.num_free, blocks.num_cached, blocks.num_held) == (4, 0, 0)


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
    blocks.hold(blocks.match(names(1, 2)))
    assert blocks.num_held == 2
    blocks.release(ids)
    assert blocks.num_held == 2
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
    blocks.hold(first)
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
    blocks.hold(held)
    blocks.forget(held)
    assert blocks.match(names(1, 2)).tolist() == []
    blocks.release(held)
    assert (blocks.num_free, blocks.num_held) == (1, 2)
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


class Sequences(RuleBasedStateMachine):
    """Sequences of tokens come, share, grow and go at random; a model of plain dicts says what must be so."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = BlockManager(24)
        self.held: list[np.ndarray] = []
        self.content: dict[int, bytes] = {}  # block -> name, as long as its content stands

    @rule(prefix=st.integers(0, 3), length=st.integers(1, 8), extra=st.integers(0, 2))
    def admit(self, prefix: int, length: int, extra: int) -> None:
        wanted = names(*(prefix * 100 + i for i in range(length)))
        matched = self.blocks.match(wanted)
        assert [self.content[block] for block in matched.tolist()] == wanted[: len(matched)]
        needed = length - len(matched) + extra
        if needed + self.blocks.count_cached(matched) > self.blocks.num_available:
            return
        self.blocks.hold(matched)
        fresh = self.blocks.allocate(needed)
        held_before = {int(block) for ids in self.held for block in ids} | set(matched.tolist())
        assert not held_before & set(fresh.tolist()), "a held block was given away"
        for block in fresh.tolist():
            self.content.pop(block, None)
        for block, block_name in zip(fresh.tolist(), wanted[len(matched) :], strict=False):
            is_taken = self.blocks.find(block_name) is not None
            self.blocks.register(block, block_name)
            if not is_taken:  # else the name stays with the block that has it
                self.content[block] = block_name
        self.held.append(np.concatenate([matched, fresh]))

    @precondition(lambda self: self.held and self.blocks.num_available)
    @rule(data=st.data())
    def grow(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.held) - 1))
        fresh = self.blocks.allocate(1)
        self.content.pop(int(fresh[0]), None)
        self.held[index] = np.concatenate([self.held[index], fresh])

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        blocks = data.draw(st.sampled_from(self.held))
        self.blocks.forget(blocks)
        for block in blocks.tolist():
            block_name = self.content.pop(block, None)
            assert block_name is None or self.blocks.find(block_name) is None

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self.blocks.release(self.held.pop(data.draw(st.integers(0, len(self.held) - 1))))

    @invariant()
    def every_block_has_one_state(self) -> None:
        self.blocks.check_integrity(self.held)
        for block_name in self.content.values():
            found = self.blocks.find(block_name)
            assert found is None or self.content[found] == block_name


TestSequences = Sequences.TestCase
