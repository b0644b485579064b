"""Engine: add, abort, step. Joins the wing that decides with the wing that computes.

One step: plan, build the inputs, run, and write down what came of it. Every sequence added ends exactly once, with a
finish code in some step's report. Nothing a request holds makes `add` or `step` raise. Knows token ids and arrays; no
text, no sockets, and of time only how long its steps take: each is charged to the sequences in it, by their tokens.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from engine import inputs
from engine.adapters.queue import AdapterQueue, AdapterStore
from engine.arrays import Ints, segment_offsets
from engine.config import EngineConfig
from engine.report import (
    ABORTED,
    ERROR,
    LENGTH,
    OUT_OF_CAPACITY,
    RUNNING,
    STOP,
    TOO_COMPLEX,
    UNCLOSED,
    EngineInfo,
    EngineStatus,
    PromptLogprobs,
    StepReport,
)
from engine.scheduling.block_manager import BlockManager
from engine.scheduling.prefix_hash import PrefixHasher
from engine.scheduling.request_check import check_request
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.sequence import Sequence, SequenceRequest, SlotTable, draw_seed
from engine.scheduling.step_budget import ScheduledStep
from engine.speculation.speculator import Drafter, Speculator, count_accepted
from engine.structured.jump_forward import JumpForward
from engine.structured.matchers import GrammarMatchers

_MAX_SCORED_BYTES = 1 << 26  # of the logits that a step computes for tokens of prompts
_MAX_WAIT_S = 0.005  # for a matcher, when there is nothing else to do
_NO_ROWS = np.empty(0, dtype=np.int32)


class StepRunner(Protocol):
    """What a Runner offers: facts of the loaded model, and the forward pass with sampling."""

    num_blocks: int
    block_size: int
    max_model_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    layout_tag: str
    has_cheap_multi_token_rows: (
        bool  # whether several tokens of a row cost little more than one, beside any number of rows
    )

    def run(self, inputs: inputs.StepInputs) -> inputs.StepOutput: ...
    def wipe(self, block_ids: Ints) -> None: ...


class Engine:
    """One loaded model and the sequences it works on. Not thread-safe; whoever owns it calls `step` while
    `has_work`."""

    def __init__(
        self,
        runner: StepRunner,
        config: EngineConfig,
        revision: str = "",
        adapters: AdapterStore | None = None,
        drafter: Drafter | None = None,
    ) -> None:
        """`drafter` None: every token is drawn in a step of its own."""
        self.info = _info_of(runner, adapters)
        self.table = SlotTable(config.max_sequences, self.info.max_model_len, runner.block_size)
        self.blocks = BlockManager(runner.num_blocks)
        self.scheduler = Scheduler(
            self.table,
            self.blocks,
            max_step_tokens=config.max_step_tokens,
            max_waiting=config.max_waiting,
            make_hasher=_hasher_maker(runner, revision) if config.is_prefix_cache_enabled else None,
            max_prompt_logprob_tokens=_MAX_SCORED_BYTES // (4 * runner.vocab_size),
        )
        self.num_computed_tokens = 0
        self.matchers = GrammarMatchers(config.model_dir, runner.vocab_size, self.info.eos_token_ids)
        self.speculator = self._make_speculator(drafter, runner, config) if drafter is not None else None
        self._jump_forward = (
            JumpForward(self.scheduler, self.matchers.find) if runner.has_cheap_multi_token_rows else None
        )
        self._runner = runner
        self._adapters: AdapterQueue | None = None
        if adapters is not None:
            self._adapters = AdapterQueue(adapters, self.scheduler.counters)
        self._num_ephemeral = 0  # open sequences of which nothing is to stay
        self._num_ranks = config.tensor_parallel
        self._sequences: dict[int, Sequence] = {}
        # (sequence id, finish code, cached tokens, device_us), for the next report
        self._ended: list[tuple[int, int, int, int]] = []
        self.busy_us = 0.0  # of all devices, and charged to sequences
        self._charged_s = 0.0  # until when the devices' time is charged; 0 while there is nothing to do
        self._max_open_tokens = 0  # sum of what the open sequences may grow to

    def _make_speculator(self, drafter: Drafter, runner: StepRunner, config: EngineConfig) -> Speculator:
        return Speculator(
            self.scheduler,
            drafter,
            free_step_tokens=min(config.free_step_tokens, config.max_step_tokens),
            vocab_size=runner.vocab_size,
            is_held=lambda sequence_id: self.matchers.find(sequence_id) is not None,
            has_cheap_multi_token_rows=runner.has_cheap_multi_token_rows,
        )

    @property
    def has_work(self) -> bool:
        return bool(self._sequences or self._ended)

    def add(self, request: SequenceRequest) -> None:
        """Queue a sequence. One that cannot be served ends in the next report."""
        code = check_request(request, self.info, has_adapters=self._adapters is not None)
        if code == RUNNING and request.sequence_id in self._sequences:
            code = ERROR
        if code != RUNNING:
            self.refuse(request.sequence_id, code)
            return
        sampling = request.sampling
        num_prompt = len(request.prompt)
        ignores_end = sampling.ignore_eos and request.constraint is None
        end_tokens = () if ignores_end else self.info.eos_token_ids
        sequence = Sequence(
            request=request,
            tenant_index=self.scheduler.counters.join(request.tenant),
            max_total_len=min(num_prompt + sampling.max_tokens, self.info.max_model_len),
            stop_token_ids=tuple({each for each in end_tokens + request.stop_token_ids if each < self.info.vocab_size}),
            token_ids=request.prompt,
            seed=draw_seed(sampling.seed),
        )
        self._sequences[request.sequence_id] = sequence
        self._num_ephemeral += request.is_ephemeral
        self._max_open_tokens += sequence.max_total_len
        refused = self.scheduler.enter(sequence)
        if refused is not None:
            self._forget(refused, OUT_OF_CAPACITY)
        if refused is sequence:
            return
        if request.adapter is not None and self._adapters is not None:
            self._adapters.add(sequence)
            if not sequence.adapter:
                return
        self._go_on(sequence)

    def _go_on(self, sequence: Sequence) -> None:
        """It has its adapter, if any; now it waits for its matcher, or joins the others."""
        request = sequence.request
        if request.constraint is None:
            self.scheduler.queue(sequence)
        else:
            self.matchers.submit(request.sequence_id, request.constraint, request.namespace)

    def refuse(self, sequence_id: int, code: int = ERROR) -> None:
        """Have the next report end a sequence that never began."""
        self._ended.append((sequence_id, code, 0, 0))

    def abort(self, sequence_id: int) -> None:
        """End a sequence now: no forward pass sees it any more. Unknown ids have ended already and are ignored."""
        sequence = self._sequences.get(sequence_id)
        if sequence is not None:
            self.scheduler.remove(sequence)
            self._forget(sequence, ABORTED)
            if sequence.request.is_ephemeral:
                self._wipe()

    def _wipe(self) -> None:
        """Nothing stays of what ephemeral sequences left. Before a step runs: its blocks may be among theirs."""
        left = self.scheduler.take_blocks_to_wipe()
        if left is not None:
            self._runner.wipe(left)

    def step(self) -> StepReport:
        """Plan, run, and report every sequence that got a token or ended."""
        if not self._charged_s:
            self._charged_s = time.perf_counter()
        if self._adapters is not None and self._adapters.num_waiting:
            self._take_adapters(self._adapters)
        if self.matchers.is_compiling:
            self._queue_prepared()
        scheduled = self.scheduler.plan()
        if self.speculator is not None:
            scheduled = self.speculator.extend(scheduled)
        if not scheduled.num_rows:
            self._charged_s = 0.0
            return self._report(_NO_ROWS, None, _NO_ROWS, _NO_ROWS.astype(np.uint8))
        if self._num_ephemeral:
            self._wipe()
        step = inputs.build(scheduled, self.table, self.matchers)
        output = self._runner.run(step)
        num_tokens = int(scheduled.num_tokens.sum())
        self.num_computed_tokens += num_tokens
        self._charge(scheduled, num_tokens)
        num_ephemeral = self._num_ephemeral
        prompts = self._take_scores(step.scored, output.scores) if step.scored is not None else ()
        report = self._commit(scheduled, output)
        if prompts:
            report = dataclasses.replace(report, prompts=prompts)
        if num_ephemeral:
            self._wipe()
        if not self._sequences:
            self._charged_s = 0.0
        return report

    def _take_scores(
        self, scored: inputs.PromptLogprobRows, scores: inputs.TokenLogprobs | None
    ) -> tuple[PromptLogprobs, ...]:
        """What the step found out of prompts, to be told; what is told is counted."""
        assert scores is not None, "a runner scores what it is asked to"
        told, first = [], 0
        for slot, sequence_id, count in scored.sequences:
            part = slice(first, first + count)
            told.append(
                PromptLogprobs(sequence_id, scores.logprobs[part], scores.top_ids[part], scores.top_logprobs[part])
            )
            first += count
            self.table.num_prompt_logprobs[slot] += count
            if self.table.num_prompt_logprobs[slot] == self.table.num_prompt[slot]:
                del self.table.num_prompt_logprobs[slot]
        return tuple(told)

    def _charge(self, step: ScheduledStep, num_tokens: int) -> None:
        """Share the time since the last charge among the step's rows, as their tokens are."""
        now_s = time.perf_counter()
        took_us = (now_s - self._charged_s) * 1e6 * self._num_ranks
        self._charged_s = now_s
        self.busy_us += took_us
        self.table.device_us[step.slots] += step.num_tokens * (took_us / num_tokens)

    def status(self) -> EngineStatus:
        """This moment's numbers."""
        scheduler, blocks = self.scheduler, self.blocks
        running = scheduler.running
        return EngineStatus(
            num_running=len(running),
            num_waiting=len(self._sequences) - len(running),
            queued_tokens=self._max_open_tokens - int(self.table.num_computed[running].sum()),
            num_blocks=blocks.num_blocks,
            num_free_blocks=blocks.num_free,
            num_cached_blocks=blocks.num_cached,
            num_computed_tokens=self.num_computed_tokens,
            num_preemptions=scheduler.num_preemptions,
            num_steps=scheduler.num_steps,
            num_ranks=self._num_ranks,
            num_drafted=self.speculator.num_drafted if self.speculator is not None else 0,
            num_accepted=self.speculator.num_accepted if self.speculator is not None else 0,
            busy_us=int(self.busy_us),
        )

    def _take_adapters(self, adapters: AdapterQueue) -> None:
        """Sequences whose adapter is here go on; waits a little for one if there is nothing else to do."""
        is_idle = not (self.scheduler.has_sequences or self._ended or self.matchers.is_compiling)
        for sequence, code in adapters.take_ready(_MAX_WAIT_S if is_idle else 0):
            if code == RUNNING:
                self._go_on(sequence)
            else:
                self._end_waiting(sequence, code)
        for sequence in adapters.take_overstaying(self.scheduler.waiting.in_turn):
            self.scheduler.waiting.leave(sequence)

    def _queue_prepared(self) -> None:
        """Sequences whose matcher is ready join the others; waits a little for one if there are no others."""
        is_idle = not self.scheduler.has_sequences and not self._ended
        for sequence_id, is_fine in self.matchers.take_ready(_MAX_WAIT_S if is_idle else 0):
            if is_fine:
                self.scheduler.queue(self._sequences[sequence_id])
            else:
                self._end_waiting(self._sequences[sequence_id], ERROR)

    def _end_waiting(self, sequence: Sequence, code: int) -> None:
        """It waited for something that it will not get."""
        self.scheduler.remove(sequence)
        self._forget(sequence, code)

    def _commit(self, step: ScheduledStep, output: inputs.StepOutput) -> StepReport:
        """Write down the step: KV computed, tokens drawn, sequences ended."""
        if step.num_drafts is not None:
            return self._commit_guessed(step, output)
        table, slots = self.table, step.slots
        sampled = slots[table.num_computed[slots] + step.num_tokens == table.length[slots]]
        self.scheduler.commit(step)
        tokens = output.token_ids
        table.token_ids[sampled, table.length[sampled]] = tokens
        table.length[sampled] += 1
        self.scheduler.counters.charge_completion(table.tenant[sampled])
        codes = self._finish_codes(sampled, table.length[sampled], output)
        return self._conclude(sampled, output, codes)

    def _commit_guessed(self, step: ScheduledStep, output: inputs.StepOutput) -> StepReport:
        """The same where rows have drafter: of what each drew at them, the tokens up to the first wrong guess stand."""
        assert self.speculator is not None
        table, slots, drawn = self.table, step.slots, output.token_ids
        rows = np.repeat(slots, step.num_tokens)  # [T], the slot of each token drawn
        offsets = segment_offsets(step.num_tokens)
        places = table.length[rows] + offsets  # [T], the index of each token drawn
        codes = self._finish_codes(rows, places + 1, output)
        last_place = table.token_ids.shape[1] - 1  # a row's last draw has no guess, and may have no place for one
        guessed = table.token_ids[rows, np.minimum(places, last_place)]
        num_accepted = count_accepted(step, drawn, guessed, codes != RUNNING)
        stands = offsets < np.repeat(num_accepted, step.num_tokens)
        rows, places = rows[stands], places[stands]
        table.token_ids[rows, places] = drawn[stands]
        table.length[slots] += num_accepted
        self.scheduler.commit(ScheduledStep(slots, num_accepted))
        self.scheduler.take_back(slots)
        self.scheduler.counters.charge_completion(table.tenant[rows])
        self.speculator.learn(step, num_accepted)
        return self._conclude(rows, output.only(stands), codes[stands])

    def _conclude(self, sampled: Ints, output: inputs.StepOutput, codes: NDArray[np.uint8]) -> StepReport:
        """Report the tokens drawn for the slots `sampled`, and let those go that end with them. A slot may be there
        several times, in a row; only its last token can end it."""
        if self._jump_forward is not None and self.matchers.has_jump_forward:
            sampled, output, codes = self._jump_forward.append(sampled, output, codes)
        tokens = output.token_ids
        if output.is_failed is not None:
            for slot in sampled[output.is_failed].tolist():  # its KV may be what is broken
                self.scheduler.disown(self.scheduler.sequence_at(slot))
            tokens = np.where(output.is_failed, np.int32(-1), tokens)
        is_over = codes != RUNNING
        matchers = self.matchers
        if matchers.has_jump_forward or matchers.has_completed or (matchers.num_matchers and is_over.any()):
            is_over |= self._end_constrained(sampled, codes)
        report = self._report(sampled, output, tokens, codes)
        for slot in sampled[is_over].tolist():
            sequence = self.scheduler.sequence_at(slot)
            self.scheduler.remove(sequence)
            self._forget(sequence)
        return report

    def _finish_codes(self, slots: Ints, lengths: Ints, output: inputs.StepOutput) -> NDArray[np.uint8]:
        """Which rows end with the token that they just drew, and have `lengths` tokens with."""
        table = self.table
        codes = np.where(lengths >= table.max_total_len[slots], LENGTH, RUNNING).astype(np.uint8)
        for column in table.stop_token_ids:
            codes[column[slots] == output.token_ids] = STOP
        if output.is_failed is not None:
            codes[output.is_failed] = ERROR
        return codes

    def _end_constrained(self, slots: Ints, codes: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Correct the finish codes of constrained rows. Returns which rows have a complete text: their last token is
        text, so a report entry of its own ends them."""
        is_complete = np.zeros(len(slots), dtype=np.bool_)
        ids = self.table.sequence_id[slots].tolist()
        for row, sequence_id in enumerate(ids):
            matcher = self.matchers.find(sequence_id)
            if matcher is None:
                continue
            if matcher.is_failed and codes[row] == ERROR:
                codes[row] = TOO_COMPLEX
            if codes[row] in (ERROR, TOO_COMPLEX, STOP) or ids[row + 1 : row + 2] == [sequence_id]:
                continue
            if matcher.is_complete:
                codes[row], is_complete[row] = RUNNING, True
                slot = slots[row]
                self._ended.append(
                    (sequence_id, STOP, int(self.table.num_cached[slot]), round(self.table.device_us[slot]))
                )
            elif codes[row] == LENGTH and not matcher.is_match:
                codes[row] = UNCLOSED
        return is_complete

    def _forget(self, sequence: Sequence, code: int = RUNNING) -> None:
        """It ended. `code` is for the next report; RUNNING if this one has said it."""
        self._num_ephemeral -= sequence.request.is_ephemeral
        self.matchers.release(sequence.sequence_id)
        if self._adapters is not None and sequence.request.adapter is not None:
            self._adapters.forget(sequence)
        del self._sequences[sequence.sequence_id]
        self._max_open_tokens -= sequence.max_total_len
        self.scheduler.counters.leave(sequence.tenant_index)
        if code != RUNNING:
            self._ended.append((sequence.sequence_id, code, max(sequence.num_cached, 0), round(sequence.device_us)))

    def _report(
        self, sampled: Ints, output: inputs.StepOutput | None, tokens: Ints, codes: NDArray[np.uint8]
    ) -> StepReport:
        """The sampled rows' entries, then those of sequences that ended without a token."""
        table, ids, num_cached = self.table, self.table.sequence_id[sampled], self.table.num_cached[sampled]
        device_us = table.device_us[sampled].astype(np.int64)
        ended, self._ended = self._ended, []
        if ended:
            ended_ids, ended_codes, ended_cached, ended_us = zip(*ended, strict=True)
            ids = np.concatenate([ids, np.array(ended_ids, dtype=np.int64)])
            tokens = np.concatenate([tokens, np.full(len(ended), -1, dtype=np.int32)])
            codes = np.concatenate([codes, np.array(ended_codes, dtype=np.uint8)])
            num_cached = np.concatenate([num_cached, np.array(ended_cached, dtype=np.int32)])
            device_us = np.concatenate([device_us, np.array(ended_us, dtype=np.int64)])
        if output is None or output.logprobs is None:
            return StepReport(ids, tokens, codes, num_cached, device_us=device_us)
        logprobs = np.where(table.num_logprobs[sampled] >= 0, output.logprobs, np.float32(np.nan))
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


def _info_of(runner: StepRunner, adapters: AdapterStore | None) -> EngineInfo:
    return EngineInfo(
        max_model_len=min(runner.max_model_len, runner.num_blocks * runner.block_size),
        vocab_size=runner.vocab_size,
        eos_token_ids=tuple(runner.eos_token_ids),
        num_blocks=runner.num_blocks,
        block_size=runner.block_size,
        layout_tag=runner.layout_tag,
        adapter_sites=adapters.sites if adapters is not None else {},
    )


def _hasher_maker(runner: StepRunner, revision: str) -> Callable[[SequenceRequest], PrefixHasher]:
    """Names of blocks depend on all that their KV does: who may share it, the model, its adapter, how KV is stored."""

    def make(request: SequenceRequest) -> PrefixHasher:
        adapter = request.adapter.digest if request.adapter is not None else ""
        return PrefixHasher(request.namespace, revision, runner.layout_tag, runner.block_size, adapter)

    return make


def _padded(column: NDArray[Any], num_rows: int, value: float) -> NDArray[Any]:
    """`column` with `num_rows` more rows of `value`."""
    if not num_rows:
        return column
    return np.concatenate([column, np.full((num_rows, *column.shape[1:]), value, dtype=column.dtype)])
