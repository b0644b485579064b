"""Speculative decoding: draft the next tokens of decoding sequences, so that one step can accept several of them.

A step computes a sequence's last token and the draft tokens after it, and samples at each of them exactly as without
drafts. The sampled tokens up to the first one that differs from its draft are kept. So the generated tokens are the
same as without drafts: the most likely ones for greedy sequences, and for others those that the same random numbers
give at the same positions. This is the rejection rule of speculative sampling for drafts of probability 1
(docs/decisions/0020-speculative-decoding-keeps-seeds.md).

Drafts fill the tokens that a step can compute at about the cost of its rows, `free_step_tokens`: more rows leave fewer
for each, and many rows leave none. Constrained sequences get no drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from engine.arrays import Ints, segment_offsets
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.step_budget import ScheduledStep
from engine.speculation.draft_length import DraftLength

_MIN_TOKENS_PER_ROW = 8  # free tokens of a step per row; drafting for more rows with fewer tokens each does not pay
_STAY_STEPS = 16
_MAX_PAUSE = 3  # steps without a request to the drafter after it proposed nothing


@dataclass(frozen=True, eq=False)
class DraftRequest:
    """A request for the next tokens of one sequence."""

    sequence_id: int
    token_ids: Ints  # [length], all known tokens; valid only during the call
    max_tokens: int


class Drafter(Protocol):
    """Proposes draft tokens."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[Ints]:
        """Return up to `max_tokens` draft tokens for each request, possibly none."""


class Speculator:
    """Adds draft tokens to the steps of one engine.

    `is_constrained` returns True for the id of a constrained sequence. `has_cheap_multi_token_rows` is True if a row
    may alternate between one and several tokens a step at no cost.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        drafter: Drafter,
        *,
        free_step_tokens: int,
        vocab_size: int,
        is_constrained: Callable[[int], bool],
        has_cheap_multi_token_rows: bool,
    ) -> None:
        self.num_drafted = 0
        self.num_accepted = 0
        self._scheduler = scheduler
        self._table = scheduler.table
        self._drafter = drafter
        self._free_step_tokens = free_step_tokens
        self._max_rows = max_rows_for(free_step_tokens)
        self._vocab_size = vocab_size
        self._is_constrained = is_constrained
        self._num_steps_since = _STAY_STEPS  # since the last step with drafts
        self._stay_steps = 0 if has_cheap_multi_token_rows else _STAY_STEPS
        self._pause = 0
        self._draft_length = DraftLength(scheduler.table.num_slots)

    def extend(self, step: ScheduledStep) -> ScheduledStep:
        """Return `step` with draft tokens for its rows, if all rows decode and the budget leaves room for drafts."""
        if self._pause and self._num_steps_since >= self._stay_steps:
            self._pause -= 1
            return step
        num_rows = len(step.slots)
        if not 0 < num_rows <= self._max_rows:
            return step
        table, slots = self._table, step.slots.tolist()
        if any(table.num_computed[slot] + 1 < table.length[slot] for slot in slots):
            return step
        max_tokens = self._free_step_tokens // num_rows - 1
        requests = {slot: each for slot in slots if (each := self._request(slot, max_tokens)) is not None}
        if not requests:
            return self._without_drafts(step)
        proposed = self._drafter.propose(list(requests.values()))
        if not any(map(len, proposed)):
            self._pause = min(self._num_steps_since, _MAX_PAUSE)
            return self._without_drafts(step)
        drafts = dict(zip(requests, proposed, strict=True))
        num_drafts = np.array([self._write(slot, drafts.get(slot)) for slot in slots], dtype=np.int32)
        if not num_drafts.any():
            return self._without_drafts(step)
        self._num_steps_since = 0
        order = np.argsort(num_drafts > 0, kind="stable")
        return ScheduledStep(step.slots[order], 1 + num_drafts[order], num_drafts=num_drafts[order])

    def _without_drafts(self, step: ScheduledStep) -> ScheduledStep:
        """Return `step` without drafts.

        For some steps after one with drafts it is still marked as a step with drafts if the device would otherwise
        have to move the sequences' contexts.
        """
        self._num_steps_since += 1
        if self._num_steps_since > self._stay_steps:
            return step
        return ScheduledStep(step.slots, step.num_tokens, num_drafts=np.zeros_like(step.slots))

    def _request(self, slot: int, max_tokens: int) -> DraftRequest | None:
        """Return the draft request for a slot; None if it gets no drafts in this step."""
        table = self._table
        sequence_id, length = int(table.sequence_id[slot]), int(table.length[slot])
        max_tokens = min(max_tokens, int(table.max_total_len[slot]) - length - 1)
        if max_tokens < 1 or self._is_constrained(sequence_id):
            return None
        max_tokens = min(max_tokens, self._draft_length.next(slot, sequence_id))
        return DraftRequest(sequence_id, table.token_ids[slot, :length], max_tokens) if max_tokens else None

    def _write(self, slot: int, draft: Ints | None) -> int:
        """Store draft tokens after the slot's tokens, as many as there are blocks for, and return their number."""
        if draft is None or not len(draft):
            return 0
        is_unknown = (draft < 0) | (draft >= self._vocab_size)  # a draft model may have a larger vocabulary
        num_known = int(np.argmax(is_unknown)) if is_unknown.any() else len(draft)
        num_drafts = self._scheduler.make_room(slot, num_known) if num_known else 0
        length = int(self._table.length[slot])
        self._table.token_ids[slot, length : length + num_drafts] = draft[:num_drafts]
        return num_drafts

    def learn(self, step: ScheduledStep, num_accepted: Ints) -> None:
        """Count the accepted drafts of `step`. `num_accepted` [R] is the result of `count_accepted`."""
        assert step.num_drafts is not None
        for slot, num_drafts, num_tokens in zip(
            step.slots.tolist(), step.num_drafts.tolist(), num_accepted.tolist(), strict=True
        ):
            if num_drafts:
                self._draft_length.learn(slot, num_drafts, num_tokens - 1)
                self.num_drafted += num_drafts
                self.num_accepted += num_tokens - 1


def max_rows_for(free_step_tokens: int) -> int:
    """Return the largest number of rows that get drafts."""
    return max(1, free_step_tokens // _MIN_TOKENS_PER_ROW)


def count_accepted(step: ScheduledStep, sampled: Ints, drafts: Ints, is_end: Ints) -> Ints:
    """Return how many of each row's sampled tokens are accepted, at least 1.

    Tokens are accepted up to and including the first one that differs from its draft or ends the sequence. `sampled`,
    `drafts` (the draft token at the same position) and `is_end` are [T], row after row.
    """
    assert step.num_drafts is not None
    starts = np.cumsum(step.num_tokens) - step.num_tokens
    offsets = segment_offsets(step.num_tokens)
    continues = (sampled == drafts) & ~is_end.astype(np.bool_) & (offsets < np.repeat(step.num_drafts, step.num_tokens))
    last: Ints = np.minimum.reduceat(np.where(continues, len(sampled), offsets), starts)
    return (last + 1).astype(np.int32)
