"""KV blocks of sequences: sharing by prefix, growth, reservations for protected sequences, release.

Knows which sequence uses which blocks and how many blocks it may still need. When a sequence runs, and which one gives
its blocks up, is decided by `scheduler.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from engine.arrays import Ints, ceil_div, segment_offsets
from engine.scheduling.block_manager import BlockManager
from engine.scheduling.prefix_hash import ROOT, PrefixHasher
from engine.scheduling.sequence import Sequence, SequenceRequest, SlotTable


@dataclass(frozen=True, eq=False)
class Allocation:
    """Blocks for all known tokens of a sequence; the KV of `matched` is already computed."""

    matched: Ints
    fresh: Ints
    num_reserved: int  # further blocks reserved for a protected sequence


class SequenceBlocks:
    """The blocks of the sequences of one scheduler.

    `make_hasher` returns the hasher of a request's namespace and adapter. None disables the prefix cache.
    """

    def __init__(
        self,
        table: SlotTable,
        manager: BlockManager,
        make_hasher: Callable[[SequenceRequest], PrefixHasher] | None,
    ) -> None:
        self.manager = manager
        self.num_reserved = 0  # blocks promised to protected sequences and not yet allocated
        self._table = table
        self._make_hasher = make_hasher
        self._hashers: list[PrefixHasher | None] = [None] * table.num_slots
        self._computing: dict[bytes, int] = {}  # hash of a block that a running sequence will compute -> its slot
        self._to_wipe: list[Ints] = []

    # ── admission ──

    def is_prefix_being_computed(self, sequence: Sequence) -> bool:
        """Return True if another sequence is about to compute the next block of this one, which can then share it."""
        if self._make_hasher is None or not self._computing or sequence.needs_prompt_logprobs:
            return False
        for block_hash in self._shareable_hashes(sequence):
            if self.manager.find(block_hash) is None:
                return block_hash in self._computing
        return False

    def allocate(self, sequence: Sequence, running: Ints, *, is_protected: bool) -> Allocation | None:
        """Allocate blocks for all known tokens of a sequence; return None, changing nothing, if they do not fit.

        One block is left for each running sequence that may grow, so that an admission does not cause a preemption
        right away. A protected sequence also reserves the blocks of its longest possible completion.
        """
        hashes = self._shareable_hashes(sequence)
        matched = self.manager.match([] if sequence.needs_prompt_logprobs else hashes)
        num_total = ceil_div(len(sequence.token_ids), self._table.block_size)
        num_new = num_total - len(matched)
        num_growth = self._max_blocks(sequence) - num_total
        needed = num_new + self.manager.count_cached(matched) + self._num_growing(running)
        needed += num_growth if is_protected else min(num_growth, 1)
        if needed > self.manager.num_available - self.num_reserved:
            return None
        self.manager.acquire(matched)
        return Allocation(matched, self.manager.allocate(num_new), num_growth if is_protected else 0)

    def assign(self, slot: int, sequence: Sequence, allocation: Allocation) -> None:
        """Enter an allocation in the block table of the sequence's slot."""
        table, matched, fresh = self._table, allocation.matched, allocation.fresh
        num_blocks = len(matched) + len(fresh)
        table.block_table[slot, : len(matched)] = matched
        table.block_table[slot, len(matched) : num_blocks] = fresh
        table.num_blocks[slot] = num_blocks
        self.num_reserved += allocation.num_reserved
        if self._make_hasher is not None:
            self._hashers[slot] = self._make_hasher(sequence.request)
            for block_hash in sequence.block_hashes[len(matched) :]:
                self._computing.setdefault(block_hash, slot)

    def _shareable_hashes(self, sequence: Sequence) -> list[bytes]:
        """Return the hashes of the full blocks before the last known token, which is always computed to sample from."""
        if self._make_hasher is None:
            return []
        size, length, hashes = self._table.block_size, len(sequence.token_ids), sequence.block_hashes
        if len(hashes) < length // size:
            self._make_hasher(sequence.request).extend(hashes, sequence.token_ids[len(hashes) * size :])
        return hashes[: (length - 1) // size]

    def _max_blocks(self, sequence: Sequence) -> int:
        """Return the blocks of the longest possible completion. The last token sampled needs no KV."""
        return ceil_div(sequence.max_total_len - 1, self._table.block_size)

    # ── growth ──

    def grow(self, running: Ints) -> bool:
        """Allocate a block for every running sequence whose next token needs one; return False if there are too few."""
        table = self._table
        growing = running[table.length[running] > table.num_blocks[running] * table.block_size]
        if not len(growing):
            return True
        num_protected = int(np.count_nonzero(table.is_protected[growing]))
        if len(growing) - num_protected > self.manager.num_available - self.num_reserved:
            return False
        self.num_reserved -= num_protected
        table.block_table[growing, table.num_blocks[growing]] = self.manager.allocate(len(growing))
        table.num_blocks[growing] += 1
        return True

    def make_room(self, slot: int, num_tokens: int, running: Ints) -> int:
        """Allocate blocks for `num_tokens` after the known tokens of a sequence, as far as no other needs them.

        Return how many of the tokens have room.
        """
        table = self._table
        length, num_blocks = int(table.length[slot]), int(table.num_blocks[slot])
        missing = ceil_div(length + num_tokens, table.block_size) - num_blocks
        if missing > 0 and not table.is_protected[slot]:
            spare = self.manager.num_available - self.num_reserved - self._num_growing(running)
            count = min(missing, max(0, spare))
            table.block_table[slot, num_blocks : num_blocks + count] = self.manager.allocate(count)
            table.num_blocks[slot] += count
        return min(num_tokens, int(table.num_blocks[slot]) * table.block_size - length)

    def _num_growing(self, running: Ints) -> int:
        """Return the number of unprotected running sequences that may need another block."""
        table = self._table
        may_grow = table.max_total_len[running] - 1 > table.num_blocks[running] * table.block_size
        return int(np.count_nonzero(may_grow & ~table.is_protected[running]))

    def register_computed(self, slots: Ints, num_computed: Ints) -> None:
        """Register the blocks completed by the latest step, after which the slots have `num_computed` tokens with KV.

        Other sequences may share these blocks from now on.
        """
        if self._make_hasher is None:
            return
        table = self._table
        num_full = num_computed // table.block_size
        num_complete = num_full - table.num_registered[slots]
        if num_complete.any():
            self._register(slots, num_complete)
            table.num_registered[slots] = num_full

    def _register(self, slots: Ints, num_complete: Ints) -> None:
        """Register the next `num_complete` blocks of each slot."""
        table, computing = self._table, self._computing
        rows = np.repeat(slots, num_complete)  # [C], one for each block
        indices = table.num_registered[rows] + segment_offsets(num_complete)
        blocks = table.block_table[rows, indices].tolist()
        tokens = table.token_blocks[rows, indices].tobytes()
        size = len(tokens) // len(rows)
        for number, (slot, index, block) in enumerate(zip(rows.tolist(), indices.tolist(), blocks, strict=True)):
            hashes, hasher = table.sequence_at(slot).block_hashes, self._hashers[slot]
            if len(hashes) == index:
                assert hasher is not None
                parent = hashes[-1] if hashes else ROOT
                hashes.append(hasher.hash_block(parent, tokens[number * size : (number + 1) * size], index))
            block_hash = hashes[index]
            self.manager.register(block, block_hash)
            if computing and computing.get(block_hash) == slot:
                del computing[block_hash]

    # ── release ──

    def release(self, sequence: Sequence) -> None:
        """Release all blocks of a running sequence. What it computed stays in the prefix cache until evicted."""
        table, slot = self._table, sequence.slot
        if table.is_protected[slot]:
            self.num_reserved -= self._max_blocks(sequence) - int(table.num_blocks[slot])
        self._release(sequence, table.block_table[slot, : table.num_blocks[slot]], sequence.request.namespace)
        for block_hash in sequence.block_hashes[int(table.num_registered[slot]) :]:
            if self._computing.get(block_hash) == slot:
                del self._computing[block_hash]
        self._hashers[slot] = None

    def release_unneeded(self, slots: Ints) -> None:
        """Release blocks beyond the known tokens of running sequences: they were for rejected draft tokens."""
        table = self._table
        needed = ceil_div(table.length[slots], table.block_size)
        for slot, first in zip(slots.tolist(), needed.tolist(), strict=True):
            last = int(table.num_blocks[slot])
            if last > first:
                self._release(table.sequence_at(slot), table.block_table[slot, first:last], b"")
                table.num_blocks[slot] = first
                table.num_mirrored[slot] = min(int(table.num_mirrored[slot]), first)

    def _release(self, sequence: Sequence, blocks: Ints, owner: bytes) -> None:
        if sequence.request.is_ephemeral:
            self._to_wipe.append(self.manager.release_uncached(blocks))
        else:
            self.manager.release(blocks, owner)

    def unregister(self, sequence: Sequence) -> None:
        """Remove a running sequence's blocks from the prefix cache: their content cannot be trusted."""
        self.manager.unregister(self._table.block_table[sequence.slot, : self._table.num_blocks[sequence.slot]])

    def take_blocks_to_wipe(self) -> Ints | None:
        """Return the blocks that ephemeral sequences released since the last call; None if there are none.

        Some may have been allocated again, but nothing has been written to them yet.
        """
        if not self._to_wipe:
            return None
        blocks, self._to_wipe = np.concatenate(self._to_wipe), []
        return blocks
