"""Tokens that constraints force follow the one drawn at once, without a step of their own.

The fixed parts of a JSON text are known before they are computed: they are written after the token that led to them,
and the next step computes their KV together, as it would a piece of prompt, and draws after the last. So they cost no
draws, and fewer steps. Whether this is done changes nothing that is said. Knows slots and tokens; what forces them is
`engine/constraints`' business, and sequences that want log-probabilities have to go step by step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from engine.arrays import Ints
from engine.inputs import StepOutput
from engine.report import LENGTH, RUNNING, STOP
from engine.scheduling.scheduler import Scheduler

Codes = NDArray[np.uint8]


class Held(Protocol):
    """A sequence held to a constraint."""

    forced: list[int]  # what comes next, whatever is drawn

    def spend(self, num_tokens: int) -> None:
        """As much of it has come."""


class ForcedTokens:
    """Belongs to one engine. `find` gives what holds a sequence, if anything does."""

    def __init__(self, scheduler: Scheduler, find: Callable[[int], Held | None]) -> None:
        self._scheduler = scheduler
        self._table = scheduler.table
        self._find = find

    def append(self, slots: Ints, output: StepOutput, codes: Codes) -> tuple[Ints, StepOutput, Codes]:
        """The K rows of a step that have drawn, and after each the rows of what is forced after it, as many as have
        room: with a finish code if they end the sequence."""
        table, found = self._table, []
        for row, sequence_id in enumerate(table.sequence_id[slots].tolist()):
            held = self._find(sequence_id)
            if held is not None and held.forced and codes[row] == RUNNING and table.num_logprobs[slots[row]] < 0:
                token_ids, code = self._write(int(slots[row]), held)
                if token_ids:
                    found.append((row, token_ids, code))
        if not found:
            return slots, output, codes
        num_rows = np.ones(len(slots), dtype=np.int32)
        for row, token_ids, _ in found:
            num_rows[row] += len(token_ids)
        rows, ends = np.repeat(np.arange(len(slots)), num_rows), np.cumsum(num_rows)
        output, codes = output.select(rows), codes[rows]
        for row, token_ids, code in found:
            output.token_ids[ends[row] - len(token_ids) : ends[row]] = token_ids
            codes[ends[row] - 1] = code
        return slots[rows], output, codes

    def _write(self, slot: int, held: Held) -> tuple[list[int], int]:
        """Make what is forced known of the slot. Returns how much of it, and the finish code after that."""
        table = self._table
        length, limit = int(table.length[slot]), int(table.max_total_len[slot])
        num_tokens = self._scheduler.make_room(slot, min(len(held.forced), limit - length))
        token_ids = held.forced[: max(0, num_tokens)]
        stop_token_ids = table.sequence_at(slot).stop_token_ids
        stop = next((place for place, token_id in enumerate(token_ids) if token_id in stop_token_ids), -1)
        if stop >= 0:
            del token_ids[stop + 1 :]
        length += len(token_ids)
        table.token_ids[slot, length - len(token_ids) : length] = token_ids
        table.length[slot] = length
        self._scheduler.counters.charge_completion(np.full(len(token_ids), table.tenant[slot]))
        held.spend(len(token_ids))
        return token_ids, STOP if stop >= 0 else LENGTH if length >= limit else RUNNING
