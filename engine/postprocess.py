"""Postprocessing of a step: store the sampled tokens, end sequences, and build the report."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.arrays import Ints, segment_offsets
from engine.inputs import StepOutput
from engine.launched_step import LaunchedStep
from engine.open_sequences import OpenSequences
from engine.report import ERROR, LENGTH, RUNNING, STOP, TOO_COMPLEX, UNCLOSED, StepReport
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.step_budget import ScheduledStep
from engine.speculation.speculator import Speculator, count_accepted
from engine.structured.jump_forward import JumpForward
from engine.structured.matchers import GrammarMatchers

Codes = NDArray[np.uint8]

_NO_ROWS: Ints = np.empty(0, dtype=np.int32)


class Postprocessor:
    """Belongs to one engine."""

    def __init__(
        self,
        scheduler: Scheduler,
        sequences: OpenSequences,
        matchers: GrammarMatchers,
        speculator: Speculator | None,
        has_cheap_multi_token_rows: bool,
    ) -> None:
        self._scheduler = scheduler
        self._table = scheduler.table
        self._sequences = sequences
        self._matchers = matchers
        self._speculator = speculator
        self.num_dropped_rows = 0  # computed for sequences that had ended or were preempted meanwhile
        self._jump_forward = JumpForward(scheduler, matchers.find) if has_cheap_multi_token_rows else None

    def process(self, step: LaunchedStep, output: StepOutput) -> StepReport:
        """Store what a step computed and sampled, end the sequences that are complete, and report."""
        if step.scheduled.num_drafts is None:
            slots, output, codes = self._store(step, output)
        else:
            slots, output, codes = self._store_accepted(step.scheduled, output)
        if self._jump_forward is not None and self._matchers.has_jump_forward:
            slots, output, codes = self._jump_forward.append(slots, output, codes)
        tokens = output.token_ids
        if output.is_failed is not None:
            for slot in slots[output.is_failed].tolist():  # the sequence's KV may be the cause of the failure
                self._scheduler.sequence_blocks.unregister(self._table.sequence_at(slot))
            tokens = np.where(output.is_failed, np.int32(-1), tokens)
        is_ended, matchers = codes != RUNNING, self._matchers
        if matchers.has_jump_forward or matchers.has_completed or (matchers.num_matchers and is_ended.any()):
            is_ended |= self._end_constrained(slots, codes)
        report = self._report(slots, output, tokens, codes)
        for slot in slots[is_ended].tolist():
            self._sequences.end(self._table.sequence_at(slot))
        return report

    def report_ended(self) -> StepReport:
        """Return the report of a step without rows."""
        return self._report(_NO_ROWS, None, _NO_ROWS, _NO_ROWS.astype(np.uint8))

    def _store(self, step: LaunchedStep, output: StepOutput) -> tuple[Ints, StepOutput, Codes]:
        """Register completed blocks and store one token for each row that sampled. Return the slots [K] of those rows.

        Rows whose sequence has ended or was preempted since the launch are dropped.
        """
        table, slots, num_computed = self._table, step.scheduled.slots, step.num_computed
        sampled, lengths = slots[step.sampling], step.lengths
        is_current = step.is_current(table.epoch)
        if not is_current.all():
            self.num_dropped_rows += int(np.count_nonzero(~is_current))
            is_kept = is_current[step.sampling]
            slots, num_computed = slots[is_current], num_computed[is_current]
            sampled, lengths, output = sampled[is_kept], lengths[is_kept], output.select(is_kept)
        table.token_ids[sampled, lengths] = output.token_ids
        table.num_pending[sampled] -= 1
        self._scheduler.sequence_blocks.register_computed(slots, num_computed)
        self._scheduler.counters.charge_completion(table.tenant[sampled])
        return sampled, output, self._finish_codes(sampled, lengths + 1, output)

    def _store_accepted(self, step: ScheduledStep, output: StepOutput) -> tuple[Ints, StepOutput, Codes]:
        """Store the tokens of rows that sampled at each of their draft tokens, up to the first rejected draft.

        A slot with several accepted tokens is returned several times in succession.
        """
        assert self._speculator is not None
        table, slots, sampled = self._table, step.slots, output.token_ids
        rows = np.repeat(slots, step.num_tokens)  # [T], the slot of each sampled token
        offsets = segment_offsets(step.num_tokens)
        indices = table.length[rows] + offsets  # [T], the index of each sampled token in its sequence
        codes = self._finish_codes(rows, indices + 1, output)
        last_index = table.token_ids.shape[1] - 1  # a row's last token has no draft and may lie beyond the table
        drafts = table.token_ids[rows, np.minimum(indices, last_index)]
        num_accepted = count_accepted(step, sampled, drafts, codes != RUNNING)
        is_accepted = offsets < np.repeat(num_accepted, step.num_tokens)
        rows, indices = rows[is_accepted], indices[is_accepted]
        table.token_ids[rows, indices] = sampled[is_accepted]
        table.length[slots] += num_accepted
        self._scheduler.commit(ScheduledStep(slots, num_accepted))
        self._scheduler.sequence_blocks.release_unneeded(slots)
        self._scheduler.counters.charge_completion(table.tenant[rows])
        self._speculator.learn(step, num_accepted)
        return rows, output.select(is_accepted), codes[is_accepted]

    def _finish_codes(self, slots: Ints, lengths: Ints, output: StepOutput) -> Codes:
        """Return the finish code of each row, which has `lengths` tokens including the one just sampled."""
        table = self._table
        codes = np.where(lengths >= table.max_total_len[slots], LENGTH, RUNNING).astype(np.uint8)
        for column in table.stop_token_ids:
            codes[column[slots] == output.token_ids] = STOP
        if output.is_failed is not None:
            codes[output.is_failed] = ERROR
        return codes

    def _end_constrained(self, slots: Ints, codes: Codes) -> NDArray[np.bool_]:
        """Correct the finish codes of constrained rows, in place.

        Return which rows are complete without an end token: their last token is text, so their end is reported in an
        entry of its own.
        """
        table = self._table
        is_complete = np.zeros(len(slots), dtype=np.bool_)
        ids = table.sequence_id[slots].tolist()
        for row, sequence_id in enumerate(ids):
            matcher = self._matchers.find(sequence_id)
            if matcher is None:
                continue
            if matcher.is_failed and codes[row] == ERROR:
                codes[row] = TOO_COMPLEX
            if codes[row] in (ERROR, TOO_COMPLEX, STOP) or ids[row + 1 : row + 2] == [sequence_id]:
                continue
            if matcher.is_complete:
                codes[row], is_complete[row] = RUNNING, True
                device_us = round(table.device_us[slots[row]])
                self._sequences.report_end(sequence_id, STOP, int(table.num_cached[slots[row]]), device_us)
            elif codes[row] == LENGTH and not matcher.is_match:
                codes[row] = UNCLOSED
        return is_complete

    def _report(self, slots: Ints, output: StepOutput | None, tokens: Ints, codes: Codes) -> StepReport:
        """Return one entry for each row of `slots`, then one for each sequence that ended without a token."""
        table, ids, num_cached = self._table, self._table.sequence_id[slots], self._table.num_cached[slots]
        device_us = table.device_us[slots].astype(np.int64)
        ended = self._sequences.take_ended() if self._sequences.ended else []
        if ended:
            ended_ids, ended_codes, ended_cached, ended_us = zip(*ended, strict=True)
            ids = np.concatenate([ids, np.array(ended_ids, dtype=np.int64)])
            tokens = np.concatenate([tokens, np.full(len(ended), -1, dtype=np.int32)])
            codes = np.concatenate([codes, np.array(ended_codes, dtype=np.uint8)])
            num_cached = np.concatenate([num_cached, np.array(ended_cached, dtype=np.int32)])
            device_us = np.concatenate([device_us, np.array(ended_us, dtype=np.int64)])
        if output is None or output.logprobs is None:
            return StepReport(ids, tokens, codes, num_cached, device_us=device_us)
        logprobs = np.where(table.sampling.num_logprobs[slots] >= 0, output.logprobs, np.float32(np.nan))
        return StepReport(
            ids,
            tokens,
            codes,
            num_cached,
            logprobs=_padded(logprobs, len(ended), np.nan),
            top_ids=None if output.top_ids is None else _padded(output.top_ids, len(ended), -1),
            top_logprobs=None if output.top_logprobs is None else _padded(output.top_logprobs, len(ended), np.nan),
            device_us=device_us,
        )


def _padded(column: NDArray[Any], num_rows: int, value: float) -> NDArray[Any]:
    """Return `column` with `num_rows` more rows of `value`."""
    if not num_rows:
        return column
    return np.concatenate([column, np.full((num_rows, *column.shape[1:]), value, dtype=column.dtype)])
