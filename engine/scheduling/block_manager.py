"""Who has which KV block: allocate, share by prefix hash, cache what nobody holds, evict, free.

A block is in exactly one of three states, and `check_integrity` can prove it:

    free     nobody holds it and nothing in it is worth finding
    cached   nobody holds it, but its content has a name (prefix hash) and may return: evicted on demand
    held     by one or more sequences (reference count); named or not

    free --allocate--> held --release--> free            (no name)
                       held --release--> cached          (named) --hold--> held, --allocate--> held, name forgotten
                       held --forget--> held             (its name is gone)

Only full blocks get names, and only once computed. Which cached block is evicted is decided by
`scheduling/cached_blocks.py`. Knows no sequences, no tokens and no policy. Moving n blocks costs O(n), most of it in
NumPy.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engine.arrays import Ints
from engine.scheduling.cached_blocks import CachedBlocks


class BlockManager:
    """The blocks 0 … num_blocks − 1 of one KV pool."""

    def __init__(self, num_blocks: int) -> None:
        assert num_blocks > 0
        self.num_blocks = num_blocks
        self._references = np.zeros(num_blocks, dtype=np.int32)
        self._free = np.arange(num_blocks - 1, -1, -1, dtype=np.int32)  # a stack; its first num_free entries count
        self.num_free = num_blocks
        self._block_of: dict[bytes, int] = {}
        self._name_of: list[bytes | None] = [None] * num_blocks
        self._is_named = np.zeros(num_blocks, dtype=np.bool_)
        self._cached = CachedBlocks(num_blocks)

    @property
    def num_cached(self) -> int:
        return self._cached.num_blocks

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` can give."""
        return self.num_free + self._cached.num_blocks

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
        """One more holder each, of blocks that are held already or that `match` gave. They are distinct, and of one
        owner."""
        self._cached.remove(blocks[self._references[blocks] == 0])
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

    def discard(self, blocks: Ints) -> Ints:
        """One holder less each, of blocks whose content is to be forgotten. Returns those that nobody holds any more:
        free, and to be wiped before anyone writes to them."""
        self.forget(blocks)
        self.release(blocks)
        is_left: NDArray[np.bool_] = self._references[blocks] == 0
        left: Ints = blocks[is_left]
        return left

    def release(self, blocks: Ints, owner: bytes = b"") -> None:
        """One holder less each. `blocks` are distinct and in the order of their sequence: of those that nobody holds
        any more the last is evicted first, so that a prefix outlives what follows it. What stays cached counts as
        `owner`'s; nobody else may know its names."""
        assert np.all(self._references[blocks] > 0)
        self._references[blocks] -= 1
        dropped = blocks[self._references[blocks] == 0]
        is_named = self._is_named[dropped]
        self._cached.add(dropped[is_named][::-1], owner)
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

    def _evict(self) -> int:
        """Forget a cached block's name and hand it over."""
        block = self._cached.evict()
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
        cached = self._cached.check_integrity()
        held = set(np.flatnonzero(self._references).tolist())
        assert len(free) == self.num_free, "a block is free twice"
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
