"""Which sequences run in the next step, and how many tokens of each.

The order of a plan: give running sequences the blocks they grow into, preempting if none is left; admit waiting ones
whose whole prompt fits now; share the step's token budget (`scheduling/step_budget.py`).

Preemption is bounded: a sequence that lost its blocks MAX_PREEMPTIONS times is admitted again only with room reserved
for its longest possible answer, and is then left alone. Preempted sequences are admitted before new ones, oldest
first. Knows token counts, never what tokens mean or what a model does.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from engine.arrays import Ints, ceil_div, segment_offsets
from engine.scheduling.block_manager import BlockManager
from engine.scheduling.fairness import TenantCounters
from engine.scheduling.prefix_hash import ROOT, PrefixHasher
from engine.scheduling.sequence import Sequence, SequenceRequest, SlotTable
from engine.scheduling.step_budget import ScheduledStep, StepBudget
from engine.scheduling.waiting import WaitingQueue

MAX_PREEMPTIONS = 3
MAX_DEFERRALS = 512  # steps a sequence waits for a prefix that another is computing, before computing it itself


class Scheduler:
    """Owns the slots, and through the block manager the blocks, of the sequences it was given.

    `make_hasher` names the blocks of a request's namespace and adapter; None switches the prefix cache off.
    """

    def __init__(
        self,
        table: SlotTable,
        blocks: BlockManager,
        *,
        max_step_tokens: int,
        max_waiting: int,
        make_hasher: Callable[[SequenceRequest], PrefixHasher] | None,
        max_prompt_logprob_tokens: int = 512,
    ) -> None:
        self.table = table
        self.blocks = blocks
        self.counters = TenantCounters()
        self.waiting = WaitingQueue(self.counters, max_waiting)
        self.num_preemptions = 0
        self.num_steps = 0
        self._budget = StepBudget(table, max_step_tokens, max_prompt_logprob_tokens)
        self._make_hasher = make_hasher
        self._sequences: list[Sequence | None] = [None] * table.num_slots
        self._hashers: list[PrefixHasher | None] = [None] * table.num_slots
        self._free_slots = list(range(table.num_slots - 1, -1, -1))
        self._running = np.zeros(table.num_slots, dtype=np.int32)  # slots in order of admission
        self._num_running = 0
        self._preempted: dict[int, Sequence] = {}
        self._computing: dict[bytes, int] = {}  # names of blocks that a running sequence is about to compute -> slot
        self._num_reserved = 0  # blocks promised to protected sequences and not yet theirs
        self._to_wipe: list[Ints] = []

    # ── what it holds ──

    @property
    def running(self) -> Ints:
        """Slots of the running sequences, in order of admission."""
        return self._running[: self._num_running]

    @property
    def num_waiting(self) -> int:
        return len(self.waiting) + len(self._preempted)

    @property
    def num_free_slots(self) -> int:
        """Slots that are free, and that no preempted sequence waits for; below 0 where more of those wait."""
        return len(self._free_slots) - len(self._preempted)

    @property
    def has_sequences(self) -> bool:
        return self._num_running > 0 or self.num_waiting > 0

    def sequence_at(self, slot: int) -> Sequence:
        sequence = self._sequences[slot]
        assert sequence is not None, "the slot is free"
        return sequence

    # ── coming and going ──

    def enter(self, sequence: Sequence) -> Sequence | None:
        """Give it a place among those that wait. Returns the sequence that has none any more, if any."""
        return self.waiting.enter(sequence, self.num_free_slots)

    def queue(self, sequence: Sequence) -> None:
        """It has all it needs but a slot."""
        self.waiting.join(sequence)

    def remove(self, sequence: Sequence) -> None:
        """It ended, wherever it is; its blocks are free before the next plan."""
        if sequence.slot >= 0:
            self._release(sequence)
        elif self._preempted.pop(sequence.sequence_id, None) is None:
            self.waiting.remove(sequence)

    def take_blocks_to_wipe(self) -> Ints | None:
        """Blocks that ephemeral sequences left since the last call; None where there are none. Some may have a new
        holder, who has written nothing yet."""
        if not self._to_wipe:
            return None
        left, self._to_wipe = np.concatenate(self._to_wipe), []
        return left

    def disown(self, sequence: Sequence) -> None:
        """What this running sequence computed or read cannot be trusted: nobody may find its blocks any more."""
        self.blocks.forget(self.table.block_table[sequence.slot, : self.table.num_blocks[sequence.slot]])

    # ── one step ──

    def plan(self) -> ScheduledStep:
        """The next step; no rows if nothing can run."""
        self._extend()
        self._admit()
        step = self._budget.share(self.running)
        if step.num_rows:
            self.num_steps += 1
            self.table.last_step[step.slots] = self.num_steps
        return step

    def commit(self, step: ScheduledStep) -> None:
        """The step's KV is written: count it, and name the blocks it completed."""
        table, slots = self.table, step.slots
        computed = table.num_computed[slots] + step.num_tokens
        table.num_computed[slots] = computed
        if self._make_hasher is None:
            return
        num_full = computed // table.block_size
        num_complete = num_full - table.num_registered[slots]
        if num_complete.any():
            self._register(slots, num_complete)
            table.num_registered[slots] = num_full

    def _register(self, slots: Ints, num_complete: Ints) -> None:
        """Name the next `num_complete` blocks of each slot, full and computed: from now on others may share them."""
        table, computing = self.table, self._computing
        rows = np.repeat(slots, num_complete)  # [C], a row for each block
        indices = table.num_registered[rows] + segment_offsets(num_complete)
        blocks = table.block_table[rows, indices].tolist()
        tokens = table.token_blocks[rows, indices].tobytes()
        size = len(tokens) // len(rows)
        for number, (slot, index, block) in enumerate(zip(rows.tolist(), indices.tolist(), blocks, strict=True)):
            names, hasher = self.sequence_at(slot).prefix_hashes, self._hashers[slot]
            if len(names) == index:
                assert hasher is not None
                names.append(hasher.name(names[-1] if names else ROOT, tokens[number * size : (number + 1) * size]))
            name = names[index]
            self.blocks.register(block, name)
            if computing and computing.get(name) == slot:
                del computing[name]

    # ── blocks for those that run ──

    def make_room(self, slot: int, num_tokens: int) -> int:
        """Blocks for `num_tokens` after those known of a running sequence, as far as nobody is to need them. Returns
        how many of the tokens have a place; `take_back` what is left over."""
        table = self.table
        length, num_blocks = int(table.length[slot]), int(table.num_blocks[slot])
        missing = ceil_div(length + num_tokens, table.block_size) - num_blocks
        if missing > 0 and not table.is_protected[slot]:
            spare = self.blocks.num_available - self._num_reserved - self._num_growing()
            count = min(missing, max(0, spare))
            table.block_table[slot, num_blocks : num_blocks + count] = self.blocks.allocate(count)
            table.num_blocks[slot] += count
        return min(num_tokens, int(table.num_blocks[slot]) * table.block_size - length)

    def take_back(self, slots: Ints) -> None:
        """Blocks that the known tokens of running sequences do not need."""
        table = self.table
        needed = ceil_div(table.length[slots], table.block_size)
        for slot, first in zip(slots.tolist(), needed.tolist(), strict=True):
            last = int(table.num_blocks[slot])
            if last > first:
                behind = table.block_table[slot, first:last]
                if self.sequence_at(slot).request.is_ephemeral:
                    self._to_wipe.append(self.blocks.discard(behind))
                else:
                    self.blocks.release(behind)
                table.num_blocks[slot] = first

    def _extend(self) -> None:
        """A block more for every running sequence whose next token needs one."""
        table = self.table
        while True:
            running = self.running
            growing = running[table.length[running] > table.num_blocks[running] * table.block_size]
            if not len(growing):
                return
            is_protected = table.is_protected[growing]
            num_protected = int(np.count_nonzero(is_protected))
            if len(growing) - num_protected <= self.blocks.num_available - self._num_reserved:
                break
            self._preempt(self._choose_victim())
        self._num_reserved -= num_protected
        table.block_table[growing, table.num_blocks[growing]] = self.blocks.allocate(len(growing))
        table.num_blocks[growing] += 1

    def _choose_victim(self) -> Sequence:
        """Of the unprotected: the one with the least work to lose, the newest of those."""
        table = self.table
        running = self.running[~table.is_protected[self.running]]
        work = table.num_computed[running] - table.num_matched[running]
        least = running[work == work.min()]
        return self.sequence_at(int(least[np.argmax(table.sequence_id[least])]))

    def _preempt(self, sequence: Sequence) -> None:
        """Take its blocks back; it keeps every token it has and computes their KV again later."""
        sequence.num_preemptions += 1
        self.num_preemptions += 1
        slot = sequence.slot
        sequence.token_ids = self.table.token_ids[slot, : self.table.length[slot]].copy()
        self._release(sequence)
        self._preempted[sequence.sequence_id] = sequence

    def _release(self, sequence: Sequence) -> None:
        """Its slot and blocks are free. What it had computed stays in the prefix cache until evicted."""
        table, slot = self.table, sequence.slot
        if table.is_protected[slot]:
            self._num_reserved -= self._max_blocks(sequence) - int(table.num_blocks[slot])
        held = table.block_table[slot, : table.num_blocks[slot]]
        if sequence.request.is_ephemeral:
            self._to_wipe.append(self.blocks.discard(held))
            table.token_ids[slot] = 0
        else:
            self.blocks.release(held, sequence.request.namespace)
        for name in sequence.prefix_hashes[int(table.num_registered[slot]) :]:
            if self._computing.get(name) == slot:
                del self._computing[name]
        table.logit_biases.pop(slot, None)
        table.held_ends.pop(slot, None)
        sequence.num_prompt_logprobs = table.num_prompt_logprobs.pop(slot, sequence.num_prompt)
        sequence.device_us = float(table.device_us[slot])
        self._sequences[slot] = None
        self._hashers[slot] = None
        self._free_slots.append(slot)
        sequence.slot = -1
        running = self.running
        kept = running[running != slot]
        self._running[: len(kept)] = kept
        self._num_running = len(kept)

    def _max_blocks(self, sequence: Sequence) -> int:
        """Blocks of its longest possible answer. The last token drawn needs no KV."""
        return ceil_div(sequence.max_total_len - 1, self.table.block_size)

    # ── admission ──

    def _admit(self) -> None:
        """Give slots to waiting sequences while the next one fits."""
        while self._preempted and self._free_slots:
            sequence = self._preempted[min(self._preempted)]
            if not self._fits_and_runs(sequence):
                return
            del self._preempted[sequence.sequence_id]
        deferred: set[int] = set()
        while self._free_slots and not self._preempted:
            candidate = self.waiting.find_next(deferred)
            if candidate is None:
                return
            if self._is_being_computed(candidate):
                candidate.num_deferrals += 1
                deferred.add(candidate.tenant_index)
                continue
            if not self._fits_and_runs(candidate):
                return  # not even a smaller one: passing by would starve the large
            self.waiting.remove(candidate)

    def _is_being_computed(self, sequence: Sequence) -> bool:
        """Whether the next block of it is just being computed by another of its own namespace: then waiting saves both
        the work and the memory of doing it twice."""
        if sequence.num_deferrals >= MAX_DEFERRALS:
            return False
        if self._make_hasher is None or not self._computing or sequence.needs_prompt_logprobs:
            return False
        for name in self._names(sequence):
            if self.blocks.find(name) is None:
                return name in self._computing
        return False

    def _names(self, sequence: Sequence) -> list[bytes]:
        """The names of its full blocks that may be shared. Its last known token is always computed, to draw from."""
        if self._make_hasher is None:
            return []
        size, length = self.table.block_size, len(sequence.token_ids)
        if len(sequence.prefix_hashes) < length // size:
            rest = sequence.token_ids[len(sequence.prefix_hashes) * size :]
            self._make_hasher(sequence.request).extend(sequence.prefix_hashes, rest)
        return sequence.prefix_hashes[: (length - 1) // size]

    def _fits_and_runs(self, sequence: Sequence) -> bool:
        """Admit `sequence` if the KV of every token known of it fits now; else change nothing."""
        names = self._names(sequence)
        matched = self.blocks.match([] if sequence.needs_prompt_logprobs else names)
        num_total = ceil_div(len(sequence.token_ids), self.table.block_size)
        num_new = num_total - len(matched)
        num_growth = self._max_blocks(sequence) - num_total
        is_protected = sequence.num_preemptions >= MAX_PREEMPTIONS
        needed = num_new + self.blocks.count_cached(matched) + self._num_growing()
        needed += num_growth if is_protected else min(num_growth, 1)
        if needed > self.blocks.num_available - self._num_reserved:
            return False
        self.blocks.hold(matched)
        fresh = self.blocks.allocate(num_new)
        self._run(sequence, matched, fresh)
        if is_protected:
            self.table.is_protected[sequence.slot] = True
            self._num_reserved += num_growth
        return True

    def _num_growing(self) -> int:
        """Unprotected running sequences that may need another block: admission leaves one for each, so that it is
        not undone by a preemption right away."""
        table, running = self.table, self.running
        may_grow = table.max_total_len[running] - 1 > table.num_blocks[running] * table.block_size
        return int(np.count_nonzero(may_grow & ~table.is_protected[running]))

    def _run(self, sequence: Sequence, matched: Ints, fresh: Ints) -> None:
        """Give `sequence` a slot with these blocks, of which `matched` are computed already."""
        table, slot = self.table, self._free_slots.pop()
        num_matched = len(matched) * table.block_size
        if sequence.num_cached < 0:
            sequence.num_cached = num_matched
            self.counters.charge_prompt(sequence.tenant_index, sequence.num_prompt - num_matched, num_matched)
        table.fill(slot, sequence, num_matched)
        num_blocks = len(matched) + len(fresh)
        table.block_table[slot, : len(matched)] = matched
        table.block_table[slot, len(matched) : num_blocks] = fresh
        table.num_blocks[slot] = num_blocks
        table.last_step[slot] = self.num_steps
        sequence.slot = slot
        self._sequences[slot] = sequence
        self._running[self._num_running] = slot
        self._num_running += 1
        if self._make_hasher is not None:
            self._hashers[slot] = self._make_hasher(sequence.request)
            for name in sequence.prefix_hashes[len(matched) :]:
                self._computing.setdefault(name, slot)
