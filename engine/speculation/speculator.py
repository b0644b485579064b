"""Drafter the next tokens of the sequences that decode, so that one step can confirm several of them.

The step computes a sequence's last token and the guesses after it, draws at each of them as it would have drawn
without, and keeps what it drew up to the first guess that it did not draw. So what is generated is what would have
been: the likeliest tokens for a greedy sequence, and for others what the same random numbers draw at the same
positions. That is the rejection rule of speculative sampling for guesses made with certainty (docs/decisions).

Drafter fill what a step can carry at about the cost of its rows, `free_step_tokens`: with more rows there is less for
each, and with many there are none. Rows held to a constraint are not guessed for. Knows slots and tokens; who guesses,
and what a model is, are other files' business.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from engine.arrays import Ints, segment_offsets
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.step_budget import ScheduledStep
from engine.speculation.draft_length import Pace

_LEAST_SHARE = 8  # of a step's free tokens for one row: with less it is not worth while
_STAY_STEPS = 16
_MAX_PAUSE = 3  # steps in which nobody is asked, after nothing came to mind


@dataclass(frozen=True, eq=False)
class DraftRequest:
    """One sequence whose next tokens are to be guessed: all that are known of it, and how many guesses it may have."""

    sequence_id: int
    token_ids: Ints  # [length], not to be kept
    most: int


class Drafter(Protocol):
    """Who guesses. One answer for each that was asked, of at most `most` tokens; none where nothing comes to mind."""

    def propose(self, asked: Sequence[DraftRequest]) -> list[Ints]: ...


class Speculator:
    """Belongs to one engine. `is_held` says which sequences are held to a constraint; `has_cheap_multi_token_rows`
    whether a row may have several tokens in one step and one in the next at no cost."""

    def __init__(
        self,
        scheduler: Scheduler,
        guesses: Drafter,
        *,
        free_step_tokens: int,
        vocab_size: int,
        is_held: Callable[[int], bool],
        has_cheap_multi_token_rows: bool,
    ) -> None:
        self.num_drafted = 0
        self.num_accepted = 0
        self._scheduler = scheduler
        self._table = scheduler.table
        self._drafter = guesses
        self._free_step_tokens = free_step_tokens
        self._max_rows = max_rows_for(free_step_tokens)
        self._vocab_size = vocab_size
        self._is_held = is_held
        self._num_since = _STAY_STEPS  # steps since there was a guess
        self._stay_steps = 0 if has_cheap_multi_token_rows else _STAY_STEPS
        self._pause = 0
        self._pace = Pace(scheduler.table.num_slots)

    def extend(self, step: ScheduledStep) -> ScheduledStep:
        """`step` with guesses for its rows, if it only decodes and leaves room for them."""
        if self._pause and self._num_since >= self._stay_steps:
            self._pause -= 1
            return step
        num_rows = len(step.slots)
        if not 0 < num_rows <= self._max_rows:
            return step
        table, slots = self._table, step.slots.tolist()
        if any(table.num_computed[slot] + 1 < table.length[slot] for slot in slots):
            return step
        share = self._free_step_tokens // num_rows - 1
        asked = [each for slot in slots if (each := self._ask(slot, share)) is not None]
        if not asked:
            return self._unguessed(step)
        guesses = self._drafter.propose([each[1] for each in asked])
        if not any(map(len, guesses)):
            self._pause = min(self._num_since, _MAX_PAUSE)
            return self._unguessed(step)
        found = {slot: guess for (slot, _), guess in zip(asked, guesses, strict=True)}
        num_drafts = np.array([self._write(slot, found.get(slot)) for slot in slots], dtype=np.int32)
        if not num_drafts.any():
            return self._unguessed(step)
        self._num_since = 0
        order = np.argsort(num_drafts > 0, kind="stable")
        return ScheduledStep(step.slots[order], 1 + num_drafts[order], num_drafts=num_drafts[order])

    def _unguessed(self, step: ScheduledStep) -> ScheduledStep:
        """`step` without a guess. Soon after one it goes on in the form of those where the device would have to move
        contexts to and fro."""
        self._num_since += 1
        if self._num_since > self._stay_steps:
            return step
        return ScheduledStep(step.slots, step.num_tokens, num_drafts=np.zeros_like(step.slots))

    def _ask(self, slot: int, share: int) -> tuple[int, DraftRequest] | None:
        """What to ask for a slot; None if it is not to be guessed for in this step."""
        table = self._table
        sequence_id, length = int(table.sequence_id[slot]), int(table.length[slot])
        most = min(share, int(table.max_total_len[slot]) - length - 1)
        if most < 1 or self._is_held(sequence_id):
            return None
        most = min(most, self._pace.next_size(slot, sequence_id))
        return (slot, DraftRequest(sequence_id, table.token_ids[slot, :length], most)) if most else None

    def _write(self, slot: int, guess: Ints | None) -> int:
        """Put a guess after the slot's tokens, as much as there are blocks for. Returns how much that is."""
        if guess is None or not len(guess):
            return 0
        is_unknown = (guess < 0) | (guess >= self._vocab_size)  # of a model with more tokens than this one
        num_known = int(np.argmax(is_unknown)) if is_unknown.any() else len(guess)
        num_drafts = self._scheduler.make_room(slot, num_known) if num_known else 0
        length = int(self._table.length[slot])
        self._table.token_ids[slot, length : length + num_drafts] = guess[:num_drafts]
        return num_drafts

    def learn(self, step: ScheduledStep, num_accepted: Ints) -> None:
        """What became of the guesses of `step`: of each row's tokens, the first `num_accepted` [R] stand."""
        assert step.num_drafts is not None
        for slot, num_drafts, standing in zip(
            step.slots.tolist(), step.num_drafts.tolist(), num_accepted.tolist(), strict=True
        ):
            if num_drafts:
                self._pace.learn(slot, num_drafts, standing - 1)
                self.num_drafted += num_drafts
                self.num_accepted += standing - 1


def max_rows_for(free_step_tokens: int) -> int:
    """How many sequences are guessed for at a time: as many as can have several guesses each."""
    return max(1, free_step_tokens // _LEAST_SHARE)


def count_accepted(step: ScheduledStep, drawn: Ints, guessed: Ints, is_end: Ints) -> Ints:
    """How many of each row's drawn tokens stand: up to the first that is not the one guessed or that ends the sequence.

    `drawn`, `guessed` (which token the guess has there) and `is_end` are [T], row after row.
    """
    assert step.num_drafts is not None
    starts = np.cumsum(step.num_tokens) - step.num_tokens
    offsets = segment_offsets(step.num_tokens)
    goes_on = (drawn == guessed) & ~is_end.astype(np.bool_) & (offsets < np.repeat(step.num_drafts, step.num_tokens))
    last: Ints = np.minimum.reduceat(np.where(goes_on, len(drawn), offsets), starts)
    return (last + 1).astype(np.int32)
