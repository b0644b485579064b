"""Engine: the sequences of one loaded model, and one step at a time over them.

A step is: admit, schedule, build inputs, run, postprocess. Every sequence added ends exactly once, with a finish code
in a step's report; no request makes `add` or `step` raise. Knows token ids and arrays, but no text and no sockets.

If the runner can launch steps without waiting for them, the engine runs one step ahead: it launches step N+1 before it
collects the output of step N, so that the device never waits for the host. The tokens of step N are then unknown to the
host when step N+1 is planned; the plan needs counts only. Steps that need the tokens themselves run synchronously
(docs/decisions/0063-one-step-ahead.md).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Protocol

import msgspec

from engine.adapters.queue import AdapterQueue, AdapterStore
from engine.admission import Admission
from engine.arrays import Ints
from engine.config import DRAFT, EngineConfig
from engine.device_time import DeviceTime
from engine.devices.arena import ArenaError, SleepSizes
from engine.input_builder import build_inputs
from engine.inputs import StepInputs
from engine.launched_step import LaunchedStep, PendingOutput
from engine.open_sequences import OpenSequences
from engine.postprocess import Postprocessor
from engine.prompt_logprobs import take_prompt_logprobs
from engine.report import (
    ABORTED,
    ERROR,
    OUT_OF_CAPACITY,
    RUNNING,
    EngineInfo,
    EngineStatus,
    SleepFailed,
    SleepReport,
    StepReport,
)
from engine.scheduling.block_manager import BlockManager
from engine.scheduling.prefix_hash import PrefixHasher
from engine.scheduling.request_check import check_request
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.sequence import Sequence, SequenceRequest, SlotTable, draw_seed
from engine.scheduling.step_budget import ScheduledStep
from engine.speculation.speculator import Drafter, Speculator
from engine.structured.matchers import GrammarMatchers

_MAX_PROMPT_LOGITS_BYTES = 1 << 26  # in one step, for log-probabilities of prompts


class StepRunner(Protocol):
    """A loaded model: its properties, and the forward pass with sampling."""

    num_blocks: int
    block_size: int
    max_model_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    layout_tag: str
    weight_bytes: int  # sum over all ranks, like `kv_bytes`
    kv_bytes: int
    has_cheap_multi_token_rows: bool  # several tokens of a row cost little more than one, however many rows there are

    can_run_ahead: bool  # `launch` returns before the device has finished, and knows the tokens of the previous step

    def launch(self, inputs: StepInputs) -> PendingOutput: ...

    can_sleep: bool  # `sleep` gives the memory of weights and KV back until `wake`; both raise ArenaError

    def wipe(self, block_ids: Ints) -> None: ...
    def sleep(self, snapshot: str) -> SleepSizes: ...
    def wake(self) -> int: ...


class Engine:
    """One loaded model and its sequences. Not thread-safe. The owner calls `step` while `has_work`."""

    def __init__(
        self,
        runner: StepRunner,
        config: EngineConfig,
        revision: str = "",
        adapters: AdapterStore | None = None,
        drafter: Drafter | None = None,
    ) -> None:
        """`drafter` enables speculative decoding."""
        self.info = _info_of(runner, adapters, config)
        self._memory_bytes = runner.weight_bytes, runner.kv_bytes
        self.table = SlotTable(config.max_sequences, self.info.max_model_len, runner.block_size)
        self.table.is_mirrored = runner.can_run_ahead
        self.blocks = BlockManager(runner.num_blocks)
        self.scheduler = Scheduler(
            self.table,
            self.blocks,
            max_step_tokens=config.max_step_tokens,
            max_waiting=config.max_waiting,
            make_hasher=_hasher_factory(runner, revision) if config.is_prefix_cache_enabled else None,
            max_prompt_logprob_tokens=_MAX_PROMPT_LOGITS_BYTES // (4 * runner.vocab_size),
        )
        self.num_computed_tokens = 0
        self.matchers = GrammarMatchers(config.model_dir, runner.vocab_size, self.info.eos_token_ids)
        self.speculator = self._make_speculator(drafter, runner, config) if drafter is not None else None
        adapter_queue = AdapterQueue(adapters, self.scheduler.counters) if adapters is not None else None
        self.sequences = OpenSequences(self.scheduler, self.matchers, adapter_queue)
        self.device_time = DeviceTime(self.table, config.tensor_parallel)
        self.postprocessor = Postprocessor(
            self.scheduler, self.sequences, self.matchers, self.speculator, runner.has_cheap_multi_token_rows
        )
        self._admission = Admission(self.sequences, self.scheduler, self.matchers, adapter_queue)
        self._has_adapters = adapters is not None
        self._runner = runner
        # Launched steps in order: at most two during `step`, at most one after it.
        self._launched: deque[LaunchedStep] = deque()
        self.num_synchronous: Counter[str] = Counter()  # steps that could not run ahead, by reason
        self._num_ranks = config.tensor_parallel
        self._asleep: SleepSizes | None = None

    def _make_speculator(self, drafter: Drafter, runner: StepRunner, config: EngineConfig) -> Speculator:
        return Speculator(
            self.scheduler,
            drafter,
            free_step_tokens=min(config.free_step_tokens, config.max_step_tokens),
            vocab_size=runner.vocab_size,
            is_constrained=lambda sequence_id: self.matchers.find(sequence_id) is not None,
            has_cheap_multi_token_rows=runner.has_cheap_multi_token_rows,
        )

    @property
    def has_work(self) -> bool:
        return bool(self.sequences or self.sequences.ended or self._launched)

    def add(self, request: SequenceRequest) -> None:
        """Queue a sequence. If it cannot be served, the next report ends it."""
        code = check_request(request, self.info, has_adapters=self._has_adapters)
        if self._asleep is not None:
            code = OUT_OF_CAPACITY
        if code == RUNNING and self.sequences.get(request.sequence_id) is not None:
            code = ERROR
        if code != RUNNING:
            self.reject(request.sequence_id, code)
            return
        sequence = self._new_sequence(request)
        self.sequences.add(sequence)
        dropped = self.scheduler.reserve(sequence)
        if dropped is not None:
            self.sequences.close(dropped, OUT_OF_CAPACITY)
        if dropped is not sequence:
            self._admission.enter(sequence)

    def _new_sequence(self, request: SequenceRequest) -> Sequence:
        sampling, vocab_size = request.sampling, self.info.vocab_size
        ignores_end = sampling.ignore_eos and request.constraint is None
        end_tokens = () if ignores_end else self.info.eos_token_ids
        return Sequence(
            request=request,
            tenant_index=self.scheduler.counters.join(request.tenant),
            max_total_len=min(len(request.prompt) + sampling.max_tokens, self.info.max_model_len),
            stop_token_ids=tuple({each for each in end_tokens + request.stop_token_ids if each < vocab_size}),
            token_ids=request.prompt,
            seed=draw_seed(sampling.seed),
        )

    def sleep(self, snapshot: str) -> SleepReport:
        """Give the memory of weights and KV back until `wake`; cached blocks are lost. To be called without work.

        Raises SleepFailed.
        """
        assert not self.has_work, "a model sleeps between its calls"
        try:
            self._asleep = self._runner.sleep(snapshot)
        except ArenaError as error:
            raise SleepFailed(str(error)) from error
        self.blocks.forget_cached()
        return SleepReport(is_asleep=True, host_bytes=self._asleep.host_bytes, device_bytes=self._asleep.device_bytes)

    def wake(self) -> SleepReport:
        """Get the memory back. Raises SleepFailed; the model then stays asleep."""
        try:
            host_bytes = self._runner.wake()
        except ArenaError as error:
            raise SleepFailed(str(error)) from error
        self._asleep = None
        return SleepReport(is_asleep=False, host_bytes=host_bytes)

    def reject(self, sequence_id: int, code: int = ERROR) -> None:
        """End a sequence that was not added, in the next report."""
        self.sequences.report_end(sequence_id, code)

    def abort(self, sequence_id: int) -> None:
        """End a sequence before the next forward pass. Ids of ended sequences are ignored."""
        sequence = self.sequences.get(sequence_id)
        if sequence is not None:
            self.sequences.end(sequence, ABORTED)
            if sequence.request.is_ephemeral:
                self._wipe_released_blocks()

    def step(self) -> StepReport:
        """Launch a step unless one is launched, and one ahead; then collect the first. Report every sequence that got a
        token or ended."""
        self.device_time.resume()
        self._admission.admit()
        if not self._launched:
            self._launch()
        if self._launched and self._runs_ahead():
            self._launch()
        if not self._launched:
            self.device_time.pause()
            return self.postprocessor.report_ended()
        report = self._collect(self._launched.popleft())
        if not (self.sequences or self._launched):
            self.device_time.pause()
        return report

    def _runs_ahead(self) -> bool:
        """Return True if the next step can be planned before the tokens of the launched one are known."""
        if not self._runner.can_run_ahead:
            return False
        reason = self._reason_to_wait()
        if reason:
            self.num_synchronous[reason] += 1
        return not reason

    def _reason_to_wait(self) -> str:
        """Return what needs the tokens of the launched step on the host, or an empty string."""
        if self.speculator is not None:
            return "speculation"
        if self.matchers.num_matchers:
            return "constraint"
        if self.table.num_prompt_logprobs:
            return "prompt_logprobs"
        return "penalties" if self.table.needs_history[self.scheduler.running].any() else ""

    def _launch(self) -> None:
        """Plan the next step and hand it to the runner, if any sequence can run."""
        scheduled = self._schedule()
        if not scheduled.num_rows:
            return
        inputs = build_inputs(scheduled, self.table, self.matchers)
        output = self._runner.launch(inputs)
        self._launched.append(LaunchedStep.advance(scheduled, inputs, output, self.scheduler))

    def _schedule(self) -> ScheduledStep:
        scheduled = self.scheduler.schedule()
        if self.speculator is not None:
            scheduled = self.speculator.extend(scheduled)
        if self.sequences.num_ephemeral:
            self._wipe_released_blocks()
        return scheduled

    def _collect(self, step: LaunchedStep) -> StepReport:
        """Wait for a launched step, store its tokens, end the sequences that are complete, and report."""
        output = step.output.wait()
        num_tokens = int(step.scheduled.num_tokens.sum())
        self.num_computed_tokens += num_tokens
        self.device_time.charge(step, num_tokens, output.device_us)
        had_ephemeral = self.sequences.num_ephemeral
        prompt_logprobs = take_prompt_logprobs(step.inputs, output, self.table)
        report = self.postprocessor.process(step, output)
        if had_ephemeral:
            self._wipe_released_blocks()
        return msgspec.structs.replace(report, prompt_logprobs=prompt_logprobs) if prompt_logprobs else report

    def _wipe_released_blocks(self) -> None:
        """Wipe the blocks of ephemeral sequences. Must precede a forward pass that may write to these blocks."""
        blocks = self.scheduler.sequence_blocks.take_blocks_to_wipe()
        if blocks is not None:
            self._runner.wipe(blocks)

    def status(self) -> EngineStatus:
        """Return the current numbers."""
        scheduler, blocks, speculator = self.scheduler, self.blocks, self.speculator
        running = scheduler.running
        return EngineStatus(
            num_running=len(running),
            num_waiting=len(self.sequences) - len(running),
            queued_tokens=self.sequences.max_tokens - int(self.table.num_computed[running].sum()),
            num_blocks=blocks.num_blocks,
            num_free_blocks=blocks.num_free,
            num_cached_blocks=blocks.num_cached,
            num_computed_tokens=self.num_computed_tokens,
            num_preemptions=scheduler.num_preemptions,
            num_steps=scheduler.num_steps,
            num_ranks=self._num_ranks,
            num_drafted=speculator.num_drafted if speculator is not None else 0,
            num_accepted=speculator.num_accepted if speculator is not None else 0,
            busy_us=int(self.device_time.busy_us),
            weight_bytes=self._memory_bytes[0],
            kv_bytes=self._memory_bytes[1],
            num_prompt_tokens=scheduler.num_prompt_tokens,
            num_cached_tokens=scheduler.num_cached_tokens,
        )


def _info_of(runner: StepRunner, adapters: AdapterStore | None, config: EngineConfig) -> EngineInfo:
    return EngineInfo(
        max_model_len=min(runner.max_model_len, runner.num_blocks * runner.block_size),
        vocab_size=runner.vocab_size,
        eos_token_ids=tuple(runner.eos_token_ids),
        num_blocks=runner.num_blocks,
        block_size=runner.block_size,
        layout_tag=runner.layout_tag,
        adapter_sites=adapters.sites if adapters is not None else {},
        can_sleep=runner.can_sleep and not config.speculation.startswith(DRAFT),  # a draft model has its own memory
    )


def _hasher_factory(runner: StepRunner, revision: str) -> Callable[[SequenceRequest], PrefixHasher]:
    """Return a function that makes the hasher for a request's namespace and adapter."""

    def make(request: SequenceRequest) -> PrefixHasher:
        adapter = request.adapter.digest if request.adapter is not None else ""
        images = tuple((image.start, image.end, image.digest) for image in request.images)
        return PrefixHasher(request.namespace, revision, runner.layout_tag, runner.block_size, adapter, images)

    return make
