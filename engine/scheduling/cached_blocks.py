"""Cached blocks: which owner each block belongs to, and which block is evicted next.

Each owner's blocks form a ring from oldest to newest; an owner's oldest block is evicted first. The owner is chosen by:

1. blocks that were unused while the whole pool was evicted STAY_TURNOVERS times over, of any owner, so that owners
   that never return do not shrink the cache of the others;
2. otherwise the owner with the most blocks, so that an owner that fills the cache evicts only its own blocks.

With one owner this is least recently used first. An owner is identified by any bytes. Adding n blocks costs O(n), most
of it in NumPy; evicting costs O(1): the rings are two int32 arrays, and owners are grouped by their number of blocks.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from engine.arrays import Ints

STAY_TURNOVERS = 4  # evictions, in multiples of the pool size, after which an unused block may be evicted for anyone


class CachedBlocks:
    """A subset of the blocks 0 … num_blocks − 1. Owners are numbered while they have cached blocks."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = 0  # cached now
        self.num_evicted = 0
        self._pool_size = num_blocks
        self._newer = np.arange(2 * num_blocks, dtype=np.int32)  # entry num_blocks + owner holds both ends of a ring
        self._older = self._newer.copy()
        # Views of the same memory: indexing one element of a memoryview is several times faster.
        self._newer_view, self._older_view = self._newer.data, self._older.data
        self._owner_of = np.zeros(num_blocks, dtype=np.int32)
        self._cached_at = np.zeros(num_blocks, dtype=np.int64)  # value of num_evicted when the block was added
        self._cached_at_view = self._cached_at.data
        self._number_of: dict[bytes, int] = {}
        self._owner_name: dict[int, bytes] = {}
        self._unused_numbers = list(range(num_blocks - 1, -1, -1))
        self._counts = [0] * num_blocks  # by owner
        # Number of blocks -> owners. OrderedDict, because removing first keys makes `next(iter(dict))` O(n).
        self._owners_with: dict[int, OrderedDict[int, None]] = {}
        self._most = 0
        self._turn: OrderedDict[int, None] = OrderedDict()  # owners, in the order of checks for unused blocks

    def add(self, blocks: Ints, owner: bytes) -> None:
        """Add `blocks` as the newest of `owner`, the last of them the newest of all."""
        if not len(blocks):
            return
        number = self._number_of.get(owner)
        if number is None:
            number = self._unused_numbers.pop()
            self._number_of[owner], self._owner_name[number] = number, owner
            self._turn[number] = None
        end = self._pool_size + number
        newest = self._older_view[end]
        self._newer[blocks[:-1]] = blocks[1:]
        self._older[blocks[1:]] = blocks[:-1]
        first, last = int(blocks[0]), int(blocks[-1])
        self._newer_view[newest], self._older_view[first] = first, newest
        self._newer_view[last], self._older_view[end] = end, last
        self._owner_of[blocks] = number
        self._cached_at[blocks] = self.num_evicted
        self._recount(number, len(blocks))

    def remove(self, blocks: Ints) -> None:
        """Remove `blocks`, all of one owner: they are in use again."""
        if not len(blocks):
            return
        for block in blocks.tolist():
            self._unlink(block)
        self._recount(int(self._owner_of[blocks[0]]), -len(blocks))

    def evict(self) -> int:
        """Remove and return the block to evict next."""
        owner = self._next_owner()
        block = self._newer_view[self._pool_size + owner]
        self._unlink(block)
        self._recount(owner, -1)
        self.num_evicted += 1
        return block

    def _next_owner(self) -> int:
        if len(self._turn) > 1:
            owner = next(iter(self._turn))
            oldest = self._newer_view[self._pool_size + owner]
            if self.num_evicted - self._cached_at_view[oldest] >= STAY_TURNOVERS * self._pool_size:
                return owner
            self._turn.move_to_end(owner)
        return next(iter(self._owners_with[self._most]))

    def _unlink(self, block: int) -> None:
        newer, older = self._newer_view[block], self._older_view[block]
        self._newer_view[older] = newer
        self._older_view[newer] = older

    def _recount(self, owner: int, change: int) -> None:
        """Add `change` to the owner's number of blocks. Owners without blocks are removed."""
        before = self._counts[owner]
        after = self._counts[owner] = before + change
        self.num_blocks += change
        peers = self._owners_with
        if before:
            del peers[before][owner]
            if not peers[before]:
                del peers[before]
        if after:
            if after not in peers:
                peers[after] = OrderedDict()
            peers[after][owner] = None
        else:
            del self._turn[owner]
            del self._number_of[self._owner_name.pop(owner)]
            self._unused_numbers.append(owner)
        if after > self._most:
            self._most = after
        else:
            while self._most and self._most not in peers:  # amortized: at most as many iterations as blocks were added
                self._most -= 1

    def check_integrity(self) -> list[int]:
        """Check that rings, counts and owners agree and return every cached block. For tests. Raises AssertionError."""
        found: list[int] = []
        for owner, number in self._number_of.items():
            blocks = self._ring(number)
            assert blocks, "an owner without blocks is listed"
            assert self._counts[number] == len(blocks), "an owner's count is not that of its ring"
            assert all(self._owner_of[block] == number for block in blocks), "a block is in another owner's ring"
            assert all(np.diff(self._cached_at[blocks]) >= 0), "a ring is out of order"
            assert self._owner_name[number] == owner
            found += blocks
        numbers = set(self._number_of.values())
        assert numbers == set(self._owner_name) == set(self._turn)
        assert numbers | set(self._unused_numbers) == set(range(self._pool_size))
        assert len(numbers) + len(self._unused_numbers) == self._pool_size
        assert len(found) == len(set(found)) == self.num_blocks, "a block is cached twice or not counted"
        by_count = {(self._counts[number], number) for number in numbers}
        assert by_count == {(count, each) for count, peers in self._owners_with.items() for each in peers}
        assert self._most == max((count for count, _ in by_count), default=0)
        return found

    def _ring(self, number: int) -> list[int]:
        """Return an owner's blocks from oldest to newest; check that both directions agree."""
        end = self._pool_size + number
        directions = []
        for following in (self._newer_view, self._older_view):
            blocks: list[int] = []
            block = following[end]
            while block != end:
                blocks.append(block)
                assert len(blocks) <= self._pool_size, "a ring does not return to its end"
                block = following[block]
            directions.append(blocks)
        assert directions[0] == directions[1][::-1], "the two directions of a ring differ"
        return directions[0]
