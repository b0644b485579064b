"""Scheduler: which sequences run in the next step, and how many tokens of each.

A step is scheduled in this order: allocate the blocks that running sequences grow into, preempting if there are none;
start waiting sequences whose known tokens fit; divide the step's token budget (`step_budget.py`).

Preemption is bounded: a sequence that was preempted MAX_PREEMPTIONS times starts again only with blocks reserved for
its longest possible completion, and is then not preempted any more. Preempted sequences start before new ones, oldest
first. Knows token counts, but not what tokens mean or how a model computes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from engine.arrays import Ints, Longs
from engine.scheduling.block_manager import BlockManager
from engine.scheduling.fairness import TenantCounters
from engine.scheduling.prefix_hash import PrefixHasher
from engine.scheduling.sequence import UNKNOWN_TOKEN, Sequence, SequenceRequest, SlotTable
from engine.scheduling.sequence_blocks import SequenceBlocks
from engine.scheduling.step_budget import ScheduledStep, StepBudget
from engine.scheduling.waiting import WaitingQueue

MAX_PREEMPTIONS = 3
MAX_DEFERRALS = 512  # steps a sequence waits for a prefix that another one computes, before computing it itself


class Scheduler:
    """Owns the slots of the running sequences, and through `sequence_blocks` their blocks."""

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
        self.sequence_blocks = SequenceBlocks(table, blocks, make_hasher)
        self.counters = TenantCounters()
        self.waiting = WaitingQueue(self.counters, max_waiting)
        self.preempted: dict[int, Sequence] = {}  # by sequence id
        self.num_preemptions = 0
        self.num_steps = 0
        self.num_prompt_tokens = 0  # prompt tokens of all sequences that have started
        self.num_cached_tokens = 0  # prompt tokens that were served from the prefix cache
        self._budget = StepBudget(table, max_step_tokens, max_prompt_logprob_tokens)
        self._free_slots = list(range(table.num_slots - 1, -1, -1))
        self._running = np.zeros(table.num_slots, dtype=np.int32)  # slots in order of admission
        self._num_running = 0

    @property
    def running(self) -> Ints:
        """Slots of the running sequences, in order of admission."""
        return self._running[: self._num_running]

    @property
    def num_waiting(self) -> int:
        return len(self.waiting) + len(self.preempted)

    @property
    def num_free_slots(self) -> int:
        """Free slots beyond those that preempted sequences need; negative if more sequences are preempted."""
        return len(self._free_slots) - len(self.preempted)

    @property
    def has_sequences(self) -> bool:
        return self._num_running > 0 or self.num_waiting > 0

    # ── adding and removing sequences ──

    def reserve(self, sequence: Sequence) -> Sequence | None:
        """Make room for a sequence in the waiting queue. Return the sequence that has no room there, if any."""
        return self.waiting.reserve(sequence, self.num_free_slots)

    def queue(self, sequence: Sequence) -> None:
        """Queue a sequence that needs nothing but a slot."""
        self.waiting.push(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence that ended. Its blocks are free before the next step is scheduled."""
        if sequence.slot >= 0:
            self._stop(sequence)
        elif self.preempted.pop(sequence.sequence_id, None) is None:
            self.waiting.remove(sequence)

    # ── one step ──

    def schedule(self) -> ScheduledStep:
        """Return the next step. It has no rows if nothing can run."""
        while not self.sequence_blocks.grow(self._unfinished()):
            self._preempt(self._choose_victim())
        self._start_waiting()
        step = self._budget.divide(self._unfinished())
        if step.num_rows:
            self.num_steps += 1
            self.table.last_step[step.slots] = self.num_steps
        return step

    def _unfinished(self) -> Ints:
        """Return the running slots that need another step: all except slots whose last token is pending."""
        running = self.running
        is_unfinished = self.table.length[running] < self.table.max_total_len[running]
        return running if is_unfinished.all() else running[is_unfinished]

    def advance(self, step: ScheduledStep) -> tuple[Ints, Longs]:
        """Count what a launched step computes, before its results are known.

        Return the tokens with KV of each row after the step, int32 [R], and the indices [K] of the rows that sample.
        The token of such a row is pending: it counts in `length`, and its id is unknown.
        """
        table, slots = self.table, step.slots
        num_computed = table.num_computed[slots] + step.num_tokens
        table.num_computed[slots] = num_computed
        sampling = np.flatnonzero(num_computed == table.length[slots])
        sampled = slots[sampling]
        table.token_ids[sampled, table.length[sampled]] = UNKNOWN_TOKEN
        table.length[sampled] += 1
        table.num_pending[sampled] += 1
        return num_computed, sampling

    def commit(self, step: ScheduledStep) -> None:
        """Count the KV that a step wrote, and register the blocks that it completed. For steps with draft tokens, which
        `advance` does not count."""
        num_computed = self.table.num_computed[step.slots] + step.num_tokens
        self.table.num_computed[step.slots] = num_computed
        self.sequence_blocks.register_computed(step.slots, num_computed)

    def make_room(self, slot: int, num_tokens: int) -> int:
        """Allocate blocks for `num_tokens` after the known tokens of a running sequence, if no other needs them.

        Return how many of the tokens have room.
        """
        return self.sequence_blocks.make_room(slot, num_tokens, self.running)

    # ── preemption ──

    def _choose_victim(self) -> Sequence:
        """Return the unprotected sequence with the least computed tokens to lose, the newest among equals."""
        table = self.table
        running = self.running[~table.is_protected[self.running]]
        work = table.num_computed[running] - table.num_matched[running]
        least = running[work == work.min()]
        return table.sequence_at(int(least[np.argmax(table.sequence_id[least])]))

    def _preempt(self, sequence: Sequence) -> None:
        """Release a sequence's blocks. It keeps its tokens and computes their KV again later."""
        sequence.num_preemptions += 1
        self.num_preemptions += 1
        slot = sequence.slot
        num_known = self.table.length[slot] - self.table.num_pending[slot]  # a pending token is sampled again later
        sequence.token_ids = self.table.token_ids[slot, :num_known].copy()
        self._stop(sequence)
        self.preempted[sequence.sequence_id] = sequence

    def _stop(self, sequence: Sequence) -> None:
        """Free the slot and the blocks of a running sequence."""
        slot = sequence.slot
        self.sequence_blocks.release(sequence)
        self.table.clear(slot)
        self._free_slots.append(slot)
        running = self.running
        others = running[running != slot]
        self._running[: len(others)] = others
        self._num_running = len(others)

    # ── starting sequences ──

    def _start_waiting(self) -> None:
        """Start preempted, then queued sequences while the next one fits.

        A smaller sequence never overtakes one that does not fit: large ones would starve.
        """
        while self.preempted and self._free_slots:
            sequence = self.preempted[min(self.preempted)]
            if not self._try_start(sequence):
                return
            del self.preempted[sequence.sequence_id]
        deferred: set[int] = set()
        while self._free_slots and not self.preempted:
            candidate = self.waiting.find_next(deferred)
            if candidate is None:
                return
            if self._is_deferred(candidate):
                candidate.num_deferrals += 1
                deferred.add(candidate.tenant_index)
                continue
            if not self._try_start(candidate):
                return
            self.waiting.remove(candidate)

    def _is_deferred(self, sequence: Sequence) -> bool:
        """Return True if waiting saves computing and storing a prefix that another sequence is computing now."""
        return sequence.num_deferrals < MAX_DEFERRALS and self.sequence_blocks.is_prefix_being_computed(sequence)

    def _try_start(self, sequence: Sequence) -> bool:
        """Give a sequence a slot and blocks if all its known tokens fit; otherwise change nothing."""
        is_protected = sequence.num_preemptions >= MAX_PREEMPTIONS
        allocation = self.sequence_blocks.allocate(sequence, self.running, is_protected=is_protected)
        if allocation is None:
            return False
        table, slot = self.table, self._free_slots.pop()
        num_matched = len(allocation.matched) * table.block_size
        if sequence.num_cached < 0:
            sequence.num_cached = num_matched
            self.num_prompt_tokens += sequence.num_prompt
            self.num_cached_tokens += num_matched
            self.counters.charge_prompt(sequence.tenant_index, sequence.num_prompt - num_matched, num_matched)
        table.fill(slot, sequence, num_matched)
        self.sequence_blocks.assign(slot, sequence, allocation)
        table.last_step[slot] = self.num_steps
        table.is_protected[slot] = is_protected
        self._running[self._num_running] = slot
        self._num_running += 1
        return True
