"""Jump-forward decoding: tokens that a grammar forces are written without a step of their own.

The fixed parts of a JSON text are known before they are computed. They are written behind the token that led to them;
the next step computes their KV together, like a chunk of a prompt, and samples after the last. This changes the number
of steps, never the output. Sequences that want log-probabilities take one step per token.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from engine.arrays import Ints
from engine.inputs import StepOutput
from engine.report import LENGTH, RUNNING, STOP
from engine.scheduling.scheduler import Scheduler

if TYPE_CHECKING:
    from engine.structured.grammar_matcher import GrammarMatcher

Codes = NDArray[np.uint8]


class JumpForward:
    """Belongs to one engine. `find` returns the matcher of a sequence id, if the sequence is constrained."""

    def __init__(self, scheduler: Scheduler, find: Callable[[int], GrammarMatcher | None]) -> None:
        self._scheduler = scheduler
        self._table = scheduler.table
        self._find = find

    def append(self, slots: Ints, output: StepOutput, codes: Codes) -> tuple[Ints, StepOutput, Codes]:
        """Insert behind each of the K sampled rows the rows of its jump-forward tokens, as many as fit. The last has a
        finish code if it ends the sequence."""
        table, found = self._table, []
        for row, sequence_id in enumerate(table.sequence_id[slots].tolist()):
            matcher = self._find(sequence_id)
            if matcher is None or not matcher.jump_forward:
                continue
            if codes[row] == RUNNING and table.sampling.num_logprobs[slots[row]] < 0:
                token_ids, code = self._write(int(slots[row]), matcher)
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

    def _write(self, slot: int, matcher: GrammarMatcher) -> tuple[list[int], int]:
        """Write jump-forward tokens to the slot. Returns the tokens written and the finish code after the last."""
        table = self._table
        length, limit = int(table.length[slot]), int(table.max_total_len[slot])
        num_tokens = self._scheduler.make_room(slot, min(len(matcher.jump_forward), limit - length))
        token_ids = matcher.jump_forward[: max(0, num_tokens)]
        stop_token_ids = table.sequence_at(slot).stop_token_ids
        stop = next((index for index, token_id in enumerate(token_ids) if token_id in stop_token_ids), -1)
        if stop >= 0:
            del token_ids[stop + 1 :]
        length += len(token_ids)
        table.token_ids[slot, length - len(token_ids) : length] = token_ids
        table.length[slot] = length
        self._scheduler.counters.charge_completion(np.full(len(token_ids), table.tenant[slot]))
        matcher.advance(len(token_ids))
        return token_ids, STOP if stop >= 0 else LENGTH if length >= limit else RUNNING
