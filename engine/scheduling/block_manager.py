"""Block manager: allocate, share by block hash, cache, evict and free the blocks of the KV pool.

A block is in exactly one of three states:

    free     not in use, content is worthless
    cached   not in use, but registered under a block hash: can be found again, evicted on demand
    in use   by one or more sequences (reference count); registered or not

    free --allocate--> in use --release--> free      (not registered)
                       in use --release--> cached    (registered)    cached --acquire--> in use
                       in use --unregister--> in use (not registered) cached --allocate--> in use, hash removed

Only full, computed blocks are registered. `cached_blocks.py` decides which cached block is evicted. Knows no sequences,
tokens or policy. Each operation on n blocks costs O(n), most of it in NumPy.
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
        self._hash_of: list[bytes | None] = [None] * num_blocks
        self._is_registered = np.zeros(num_blocks, dtype=np.bool_)
        self._cached = CachedBlocks(num_blocks)

    @property
    def num_cached(self) -> int:
        return self._cached.num_blocks

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` can return: free and cached ones."""
        return self.num_free + self._cached.num_blocks

    @property
    def num_in_use(self) -> int:
        return self.num_blocks - self.num_available

    def find(self, block_hash: bytes) -> int | None:
        """Return the block registered under `block_hash`, if any."""
        return self._block_of.get(block_hash)

    def match(self, hashes: list[bytes]) -> Ints:
        """Return the blocks of the longest registered prefix of `hashes`. Changes nothing."""
        found = []
        for block_hash in hashes:
            block = self._block_of.get(block_hash)
            if block is None:
                break
            found.append(block)
        return np.array(found, dtype=np.int32)

    def count_cached(self, blocks: Ints) -> int:
        """Return how many of `blocks` are not in use: acquiring these reduces `num_available`."""
        return int(np.count_nonzero(self._references[blocks] == 0))

    def acquire(self, blocks: Ints) -> None:
        """Add a reference to each of `blocks`, which are distinct, in use or cached, and of one owner."""
        self._cached.remove(blocks[self._references[blocks] == 0])
        self._references[blocks] += 1

    def allocate(self, count: int) -> Ints:
        """Return `count` unregistered blocks with one reference each. Evicts cached blocks only if none is free."""
        assert count <= self.num_available, "check num_available first"
        num_fresh = min(count, self.num_free)
        self.num_free -= num_fresh
        blocks = self._free[self.num_free : self.num_free + num_fresh].copy()
        if num_fresh < count:
            evicted = [self._evict() for _ in range(count - num_fresh)]
            blocks = np.concatenate([blocks, np.array(evicted, dtype=np.int32)])
        self._references[blocks] = 1
        return blocks

    def release(self, blocks: Ints, owner: bytes = b"") -> None:
        """Remove a reference from each of `blocks`, which are distinct and in the order of their sequence.

        Registered blocks that nothing uses any more become cached for `owner`. The last of them is evicted first, so
        that a prefix outlives its continuation.
        """
        assert np.all(self._references[blocks] > 0)
        self._references[blocks] -= 1
        unused = blocks[self._references[blocks] == 0]
        is_registered = self._is_registered[unused]
        self._cached.add(unused[is_registered][::-1], owner)
        free = unused[~is_registered]
        self._free[self.num_free : self.num_free + len(free)] = free
        self.num_free += len(free)

    def release_uncached(self, blocks: Ints) -> Ints:
        """Unregister and release `blocks`. Return those that became free: the caller must wipe them before reuse."""
        self.unregister(blocks)
        self.release(blocks)
        is_free: NDArray[np.bool_] = self._references[blocks] == 0
        freed: Ints = blocks[is_free]
        return freed

    def forget_cached(self) -> None:
        """Make all cached blocks free: their content is lost."""
        self.release(self.allocate(self.num_available))

    def register(self, block: int, block_hash: bytes) -> None:
        """Make a full block in use findable by its hash. If another block has this hash already, do nothing."""
        assert self._references[block] > 0
        assert not self._is_registered[block]
        if block_hash not in self._block_of:
            self._block_of[block_hash] = block
            self._hash_of[block] = block_hash
            self._is_registered[block] = True

    def unregister(self, blocks: Ints) -> None:
        """Remove the hashes of blocks in use: they cannot be found any more and are freed by their last release."""
        assert np.all(self._references[blocks] > 0)
        for block in blocks[self._is_registered[blocks]].tolist():
            self._remove_hash(block)

    def _evict(self) -> int:
        block = self._cached.evict()
        self._remove_hash(block)
        return block

    def _remove_hash(self, block: int) -> None:
        block_hash = self._hash_of[block]
        assert block_hash is not None
        del self._block_of[block_hash]
        self._hash_of[block] = None
        self._is_registered[block] = False

    def check_integrity(self, users: list[Ints] | None = None) -> None:
        """Check that every block has exactly one state, and the reference counts if `users` lists each user's blocks.

        For tests: costs O(blocks). Raises AssertionError.
        """
        free = set(self._free[: self.num_free].tolist())
        cached = self._cached.check_integrity()
        in_use = set(np.flatnonzero(self._references).tolist())
        assert len(free) == self.num_free, "a block is free twice"
        assert not free & set(cached), "a block is free and cached"
        assert not free & in_use, "a block is free and in use"
        assert not in_use & set(cached), "a block is cached and in use"
        assert len(free) + len(cached) + len(in_use) == self.num_blocks, "a block has no state"
        assert self._references.min() >= 0
        registered = {block for block, block_hash in enumerate(self._hash_of) if block_hash is not None}
        assert registered == set(np.flatnonzero(self._is_registered).tolist())
        assert not registered & free, "a free block is registered"
        assert set(cached) <= registered, "a cached block is not registered"
        assert {block: key for key, block in self._block_of.items()} == {b: self._hash_of[b] for b in registered}
        if users is not None:
            counts = np.zeros(self.num_blocks, dtype=np.int64)
            for blocks in users:
                np.add.at(counts, blocks, 1)
            assert np.array_equal(counts, self._references), "the reference counts do not match the users"
