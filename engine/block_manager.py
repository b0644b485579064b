"""Who owns which KV block: allocate, share by prefix hash, evict the least recently used, free.

A block is in exactly one of three states, and `check_integrity` can prove it:

    free     nobody holds it and nothing in it is worth finding
    cached   nobody holds it, but its content has a name (prefix hash) and may return: evicted, oldest first, on demand
    held     by one or more sequences (reference count); named or not

    free --allocate--> held --release--> free            (no name)
                       held --release--> cached          (named) --hold--> held, --allocate--> held, name forgotten
                       held --forget--> held             (its name is gone)

Only full blocks get names, and only once computed. Knows no sequences, no tokens and no policy. Moving n blocks costs
O(n), most of it in NumPy: the order of eviction is a doubly linked list inside two int32 arrays.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]


class BlockManager:
    """The blocks 0 … num_blocks − 1 of one KV pool."""

    def __init__(self, num_blocks: int) -> None:
        assert num_blocks > 0
        self.num_blocks = num_blocks
        self._references = np.zeros(num_blocks, dtype=np.int32)
        self._free = np.arange(num_blocks - 1, -1, -1, dtype=np.int32)  # a stack; its first num_free entries count
        self.num_free = num_blocks
        self.num_cached = 0
        self._block_of: dict[bytes, int] = {}
        self._name_of: list[bytes | None] = [None] * num_blocks
        self._is_named = np.zeros(num_blocks, dtype=np.bool_)
        # The cached blocks from oldest to newest; entry num_blocks is the list's two ends.
        self._newer = np.full(num_blocks + 1, num_blocks, dtype=np.int32)
        self._older = np.full(num_blocks + 1, num_blocks, dtype=np.int32)
        # The same memory, for one element at a time: indexing a memoryview is several times faster.
        self._newer_view, self._older_view = self._newer.data, self._older.data

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` can give."""
        return self.num_free + self.num_cached

    @property
    def num_held(self) -> int:
        return self.num_blocks - self.num_available

    def find(self, name: bytes) -> int | None:
        """The block of that name, held or cached."""
        return self._block_of.get(name)

    def match(self, names: list[bytes]) -> Ints:
        """The blocks of the longest run of `names` that are here, from the first on. Changes nothing."""
        found = []
        for name in names:
            block = self._block_of.get(name)
            if block is None:
                break
            found.append(block)
        return np.array(found, dtype=np.int32)

    def count_cached(self, blocks: Ints) -> int:
        """How many of `blocks` nobody holds, so that holding them takes from what is available."""
        return int(np.count_nonzero(self._references[blocks] == 0))

    def hold(self, blocks: Ints) -> None:
        """Share named blocks that `match` gave: one more holder each. `blocks` are distinct."""
        for block in blocks[self._references[blocks] == 0].tolist():
            self._unlink(block)
            self.num_cached -= 1
        self._references[blocks] += 1

    def allocate(self, count: int) -> Ints:
        """`count` unnamed blocks, held once each; cached ones are evicted only when none is free."""
        assert count <= self.num_available, "ask num_available first"
        num_fresh = min(count, self.num_free)
        self.num_free -= num_fresh
        blocks = self._free[self.num_free : self.num_free + num_fresh].copy()
        if num_fresh < count:
            evicted = [self._evict() for _ in range(count - num_fresh)]
            blocks = np.concatenate([blocks, np.array(evicted, dtype=np.int32)])
        self._references[blocks] = 1
        return blocks

    def release(self, blocks: Ints) -> None:
        """One holder less each. `blocks` are distinct and in the order of their sequence: of those that nobody holds
        any more the last is evicted first, so that a prefix outlives what follows it."""
        assert np.all(self._references[blocks] > 0)
        self._references[blocks] -= 1
        dropped = blocks[self._references[blocks] == 0]
        is_named = self._is_named[dropped]
        self._append(dropped[is_named][::-1])
        free = dropped[~is_named]
        self._free[self.num_free : self.num_free + len(free)] = free
        self.num_free += len(free)

    def register(self, block: int, name: bytes) -> None:
        """Name a held block whose content is complete. A name that another block has already stays with that one."""
        assert self._references[block] > 0
        assert not self._is_named[block]
        if name not in self._block_of:
            self._block_of[name] = block
            self._name_of[block] = name
            self._is_named[block] = True

    def forget(self, blocks: Ints) -> None:
        """Take the names of held blocks away: nobody finds their content again, and the last release frees them."""
        assert np.all(self._references[blocks] > 0)
        for block in blocks[self._is_named[blocks]].tolist():
            self._unname(block)

    def _append(self, blocks: Ints) -> None:
        """Link `blocks` in as the newest, in their order."""
        if not len(blocks):
            return
        end = self.num_blocks
        newest = self._older_view[end]
        self._newer[blocks[:-1]] = blocks[1:]
        self._older[blocks[1:]] = blocks[:-1]
        first, last = int(blocks[0]), int(blocks[-1])
        self._newer_view[newest], self._older_view[first] = first, newest
        self._newer_view[last], self._older_view[end] = end, last
        self.num_cached += len(blocks)

    def _unlink(self, block: int) -> None:
        newer, older = self._newer_view[block], self._older_view[block]
        self._newer_view[older] = newer
        self._older_view[newer] = older

    def _evict(self) -> int:
        """Forget the oldest cached block's name and hand it over."""
        block = self._newer_view[self.num_blocks]
        self._unlink(block)
        self.num_cached -= 1
        self._unname(block)
        return block

    def _unname(self, block: int) -> None:
        name = self._name_of[block]
        assert name is not None
        del self._block_of[name]
        self._name_of[block] = None
        self._is_named[block] = False

    def check_integrity(self, holders: list[Ints] | None = None) -> None:
        """Prove that every block has exactly one state. Given every holder's blocks, prove the reference counts too.

        Raises AssertionError. For tests: costs O(blocks).
        """
        free = set(self._free[: self.num_free].tolist())
        cached = self._cached_blocks()
        held = set(np.flatnonzero(self._references).tolist())
        assert len(free) == self.num_free, "a block is free twice"
        assert len(cached) == len(set(cached)) == self.num_cached, "the list of cached blocks is broken"
        assert not free & set(cached), "a block is free and cached"
        assert not free & held, "a block is free and held"
        assert not held & set(cached), "a block is cached and held"
        assert len(free) + len(cached) + len(held) == self.num_blocks, "a block is in no state"
        assert self._references.min() >= 0
        named = {block for block, name in enumerate(self._name_of) if name is not None}
        assert named == set(np.flatnonzero(self._is_named).tolist())
        assert not named & free, "a free block has a name"
        assert set(cached) <= named, "a cached block has no name"
        assert {block: name for name, block in self._block_of.items()} == {b: self._name_of[b] for b in named}
        if holders is not None:
            counts = np.zeros(self.num_blocks, dtype=np.int64)
            for blocks in holders:
                np.add.at(counts, blocks, 1)
            assert np.array_equal(counts, self._references), "the reference counts are not those of the holders"

    def _cached_blocks(self) -> list[int]:
        """From oldest to newest, read along both directions of the list."""
        end, blocks = self.num_blocks, []
        block = self._newer_view[end]
        while block != end:
            blocks.append(block)
            assert len(blocks) <= self.num_blocks, "the list of cached blocks has a circle"
            block = self._newer_view[block]
        back = []
        block = self._older_view[end]
        while block != end:
            back.append(block)
            assert len(back) <= self.num_blocks, "the list of cached blocks has a circle"
            block = self._older_view[block]
        assert blocks == back[::-1], "the two directions of the list of cached blocks differ"
        return blocks
