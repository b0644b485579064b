"""Blocks that nobody holds and whose content may return: whose they are, and which of them goes next.

Each owner's blocks are a ring from oldest to newest, and the oldest of an owner goes first. Whose turn it is:

    the owner with most, so that one who fills the cache pushes out its own blocks and nobody else's;
    but blocks that lay unused while the pool was given away STAY_TURNOVERS times over go before those, whoever owns
    them, so that owners who never come back do not keep the others small.

With one owner that is least recently used first. An owner is any bytes that mean one; knows no names, no holders.
Moving n blocks in costs O(n), most of it in NumPy; out O(1) each: the rings are two int32 arrays, and owners are kept
by how many blocks they have.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from engine.arrays import Ints

STAY_TURNOVERS = 4  # evictions, in pools, after which a block that nobody asked for is anybody's


class CachedBlocks:
    """Some of the blocks 0 … num_blocks − 1. Owners are numbered while they have blocks here."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = 0  # in here
        self.num_evicted = 0
        self._pool_size = num_blocks
        self._newer = np.arange(2 * num_blocks, dtype=np.int32)  # entry num_blocks + owner is the ring's two ends
        self._older = self._newer.copy()
        # The same memory, for one element at a time: indexing a memoryview is several times faster.
        self._newer_view, self._older_view = self._newer.data, self._older.data
        self._owner_of = np.zeros(num_blocks, dtype=np.int32)
        self._cached_at = np.zeros(num_blocks, dtype=np.int64)  # evictions before it came in
        self._cached_at_view = self._cached_at.data
        self._number_of: dict[bytes, int] = {}
        self._name_of: dict[int, bytes] = {}
        self._unused_numbers = list(range(num_blocks - 1, -1, -1))
        self._counts = [0] * num_blocks  # by owner
        # Number of blocks -> owners. Ordered, since the first of a plain dict is behind all that were first before it.
        self._owners_with: dict[int, OrderedDict[int, None]] = {}
        self._most = 0
        self._turn: OrderedDict[int, None] = OrderedDict()  # owners; the first is looked at next for unused blocks

    def add(self, blocks: Ints, owner: bytes) -> None:
        """Take in `blocks` as the newest of `owner`, the last of them the very newest."""
        if not len(blocks):
            return
        number = self._number_of.get(owner)
        if number is None:
            number = self._unused_numbers.pop()
            self._number_of[owner], self._name_of[number] = number, owner
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
        """Give `blocks`, all of one owner, to somebody who found them."""
        if not len(blocks):
            return
        for block in blocks.tolist():
            self._unlink(block)
        self._recount(int(self._owner_of[blocks[0]]), -len(blocks))

    def evict(self) -> int:
        """The block that goes next."""
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
        """The owner has `change` blocks more. Owners with none are forgotten."""
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
            del self._number_of[self._name_of.pop(owner)]
            self._unused_numbers.append(owner)
        if after > self._most:
            self._most = after
        else:
            while self._most and self._most not in peers:  # no further down than blocks came in
                self._most -= 1

    def check_integrity(self) -> list[int]:
        """Prove that rings, counts and owners agree; return every block in here. Raises AssertionError. For tests."""
        found: list[int] = []
        for owner, number in self._number_of.items():
            blocks = self._ring(number)
            assert blocks, "an owner without blocks is remembered"
            assert self._counts[number] == len(blocks), "an owner's count is not that of its ring"
            assert all(self._owner_of[block] == number for block in blocks), "a block is in another owner's ring"
            assert all(np.diff(self._cached_at[blocks]) >= 0), "a ring is out of order"
            assert self._name_of[number] == owner
            found += blocks
        numbers = set(self._number_of.values())
        assert numbers == set(self._name_of) == set(self._turn)
        assert numbers | set(self._unused_numbers) == set(range(self._pool_size))
        assert len(numbers) + len(self._unused_numbers) == self._pool_size
        assert len(found) == len(set(found)) == self.num_blocks, "a block is in here twice, or not counted"
        by_count = {(self._counts[number], number) for number in numbers}
        assert by_count == {(count, each) for count, peers in self._owners_with.items() for each in peers}
        assert self._most == max((count for count, _ in by_count), default=0)
        return found

    def _ring(self, number: int) -> list[int]:
        """An owner's blocks from oldest to newest, read in both directions."""
        end = self._pool_size + number
        ways = []
        for following in (self._newer_view, self._older_view):
            blocks: list[int] = []
            block = following[end]
            while block != end:
                blocks.append(block)
                assert len(blocks) <= self._pool_size, "a ring never comes back to its end"
                block = following[block]
            ways.append(blocks)
        assert ways[0] == ways[1][::-1], "the two directions of a ring differ"
        return ways[0]
