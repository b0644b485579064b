"""One loaded model on this node: the async door to its rank process.

Adds and aborts of one turn of the event loop travel as one frame; each step comes back as one frame and every sink it
concerns is called directly, so nothing is scheduled per token. Knows token ids only, and imports no torch.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable

from msgspec import Raw, Struct

from engine.config import EngineConfig
from engine.processes.child_link import ChildLink
from engine.processes.zygote import Zygote
from engine.ranks import wire
from engine.report import FINISHES, EngineInfo, EngineStatus, Finish, PromptLogprobs, StepReport
from engine.scheduling.sequence import SequenceRequest
from telemetry.child_process import Child

logger = logging.getLogger(__name__)


class ReplicaLoadError(Exception):
    """The model could not be loaded; the text says why, for the operator."""


class TokenIdLogprob(Struct, frozen=True, gc=False):
    """The natural-log probability of one drawn token, and the likeliest tokens as (id, logprob)."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class SequenceOutput(Struct, frozen=True, gc=False):
    """News of one sequence. A `finish` is its last; "stop" follows an end token, which is among `token_ids`, or comes
    without tokens where a constraint has nothing left to say. "unclosed": the limit cut a constrained text short.

    `num_cached_tokens` is the part of the prompt that came from the prefix cache, `device_us` what it has had of the
    devices' time until now, in microseconds. `logprobs` matches `token_ids`, and is empty unless asked for.
    `prompt_logprobs` are those of the next tokens of the prompt, from its second one on; all of them come before any
    token.
    """

    token_ids: tuple[int, ...]
    finish: Finish | None = None
    num_cached_tokens: int = 0
    logprobs: tuple[TokenIdLogprob, ...] = ()
    device_us: int = 0
    prompt_logprobs: tuple[TokenIdLogprob, ...] = ()


Sink = Callable[[SequenceOutput], None]


class Replica:
    """The handle of a running rank. Belongs to one event loop; made by `start`.

    Every sequence added gets exactly one output with a finish, whatever happens to the rank. `on_exit` is called once
    if the rank ends without having been told to, with a line that says how; a rank that hangs is made to end.
    """

    def __init__(self, child: Child, on_exit: Callable[[str], None], hang_timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        self.info: EngineInfo
        self._loop = loop
        self._link = ChildLink(
            child,
            "the rank process",
            on_frame=self._on_frame,
            on_lost=self._on_lost,
            on_exit=on_exit,
            has_pending=lambda: bool(self._sinks),
            hang_timeout_s=hang_timeout_s,
        )
        self._status = EngineStatus()
        self._sinks: dict[int, Sink] = {}
        self._adds: list[Raw] = []
        self._aborts: list[int] = []
        self._is_flushing = False
        self._is_draining = False
        self._loaded: asyncio.Future[EngineInfo] = loop.create_future()
        self._drained: list[asyncio.Future[None]] = []

    @classmethod
    async def start(
        cls,
        zygote: Zygote,
        config: EngineConfig,
        revision: str,
        on_exit: Callable[[str], None],
        *,
        entry: str = "engine.ranks.rank:main",
    ) -> Replica:
        """Fork a rank, have it load the model, return when it is ready. Raises ReplicaLoadError or ZygoteError;
        cancelled meanwhile, it kills the rank, which hears nothing while it loads."""
        child = await zygote.fork(entry, wire.encode_arguments(config, revision), name=f"rank {config.model_dir.name}")
        replica = cls(child, on_exit, config.step_timeout_s)
        try:
            await replica._link.open()
            replica.info = await replica._loaded
        except BaseException as error:
            await replica.close(at_once=isinstance(error, asyncio.CancelledError))
            raise
        replica._link.watch_exit()
        return replica

    @property
    def pid(self) -> int:
        """Of the rank process."""
        return self._link.pid

    @property
    def num_open(self) -> int:
        """Sequences that have not ended yet."""
        return len(self._sinks)

    @property
    def is_alive(self) -> bool:
        return self._link.is_alive

    def status(self) -> EngineStatus:
        """The engine's numbers after its latest step."""
        return self._status

    def add(self, request: SequenceRequest, sink: Sink) -> None:
        """Start a sequence. `sink` is called in this event loop, never from within this call, and must not block."""
        if not self.is_alive or self._is_draining:
            finish = self._end_of_all if not self.is_alive else "aborted"
            self._loop.call_soon(sink, SequenceOutput((), finish))
            return
        assert request.sequence_id not in self._sinks, "a sequence id is used once"
        try:
            raw = wire.encode_request(request)
        except (TypeError, ValueError, OverflowError) as error:
            logger.warning("a request that no message can carry: %s", type(error).__name__)
            self._loop.call_soon(sink, SequenceOutput((), "error"))
            return
        self._sinks[request.sequence_id] = sink
        self._adds.append(raw)
        self._flush_soon()

    def abort(self, sequence_id: int) -> None:
        """End a sequence within one step; its sink hears "aborted", or how it had ended before the rank knew."""
        if sequence_id in self._sinks:
            self._aborts.append(sequence_id)
            self._flush_soon()

    async def drain(self) -> None:
        """Take nothing new; return when every open sequence has ended."""
        self._is_draining = True
        if self._sinks:
            future = self._loop.create_future()
            self._drained.append(future)
            await future

    async def close(self, *, at_once: bool = False) -> None:
        """End the rank. Sequences still open hear "aborted". `at_once` gives it no time to end by itself."""
        await self._link.close(at_once=at_once)
        if self._loaded.done() and not self._loaded.cancelled():
            self._loaded.exception()  # seen, so that it is not reported as forgotten

    # ── towards the rank ──

    def _flush_soon(self) -> None:
        if not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flushing = False
        adds, self._adds = self._adds, []
        aborts, self._aborts = self._aborts, []
        if self.is_alive:
            self._link.send(wire.encode_frame(wire.Work(adds, aborts)))

    # ── from the rank ──

    def _on_frame(self, payload: bytes) -> None:
        news = wire.decode_news(payload)
        if isinstance(news, wire.Stepped):
            self._status = news.status
            if news.sequence_ids or news.prompts:
                self._deliver(wire.decode_report(news))
        elif isinstance(news, wire.Loaded):
            self._status = news.status
            self._link.watch_with(news.follower_pids)
            if not self._loaded.done():
                self._loaded.set_result(news.info)
        elif not self._loaded.done():
            self._loaded.set_exception(ReplicaLoadError(news.message))

    def _deliver(self, report: StepReport) -> None:
        for prompt in report.prompts:
            if prompt.sequence_id in self._sinks:
                output = SequenceOutput((), prompt_logprobs=_prompt_logprobs(prompt))
                self._call(prompt.sequence_id, self._sinks[prompt.sequence_id], output)
        has_logprobs, num_entries = report.logprobs is not None, report.num_entries
        has_runs = num_entries > 1 and bool((report.sequence_ids[1:] == report.sequence_ids[:-1]).any())
        columns = zip(
            report.sequence_ids.tolist(),
            report.token_ids.tolist(),
            report.finishes.tolist(),
            report.num_cached.tolist(),
            [0] * num_entries if report.device_us is None else report.device_us.tolist(),
            strict=True,
        )
        earlier: list[int] = []  # tokens of the same sequence in entries before
        for row, (sequence_id, token_id, code, num_cached, device_us) in enumerate(columns):
            if has_runs and not code and row + 1 < num_entries and _is_one_run(report, row):
                earlier.append(token_id)
                continue
            sink = self._sinks.pop(sequence_id, None) if code else self._sinks.get(sequence_id)
            token_ids = (*earlier, token_id) if token_id >= 0 else ()
            earlier = []
            if sink is None:
                continue
            logprobs: tuple[TokenIdLogprob, ...] = ()
            if has_logprobs:
                for each in range(row + 1 - len(token_ids), row + 1):
                    logprobs += _logprobs(report, each)
            self._call(sequence_id, sink, SequenceOutput(token_ids, FINISHES[code], num_cached, logprobs, device_us))
        self._wake_drained()

    def _call(self, sequence_id: int, sink: Sink, output: SequenceOutput) -> None:
        """One sink's failure is its own: the sequence is aborted, the others go on."""
        try:
            sink(output)
        except Exception as error:
            logger.exception("a sink failed: %s", type(error).__name__)
            self.abort(sequence_id)
            self._sinks.pop(sequence_id, None)

    @property
    def _end_of_all(self) -> Finish:
        """What open sequences hear when the rank is there no longer."""
        return "aborted" if self._link.is_closing else "crashed"

    def _on_lost(self) -> None:
        if not self._loaded.done():
            self._loaded.set_exception(ReplicaLoadError("the rank process ended while loading; its log says why"))
        self._end_all(self._end_of_all)

    def _end_all(self, finish: Finish) -> None:
        sinks, self._sinks = self._sinks, {}
        for sequence_id, sink in sinks.items():
            self._call(sequence_id, sink, SequenceOutput((), finish))
        self._wake_drained()

    def _wake_drained(self) -> None:
        if not self._sinks:
            for future in self._drained:
                if not future.done():
                    future.set_result(None)
            self._drained.clear()


def _is_one_run(report: StepReport, row: int) -> bool:
    """Whether the entry after `row` brings one more token of the same sequence."""
    return bool(report.sequence_ids[row + 1] == report.sequence_ids[row]) and bool(report.token_ids[row + 1] >= 0)


def _prompt_logprobs(prompt: PromptLogprobs) -> tuple[TokenIdLogprob, ...]:
    columns = zip(prompt.logprobs.tolist(), prompt.top_ids.tolist(), prompt.top_logprobs.tolist(), strict=True)
    return tuple(TokenIdLogprob(logprob, tuple(zip(ids, tops, strict=True))) for logprob, ids, tops in columns)


def _logprobs(report: StepReport, row: int) -> tuple[TokenIdLogprob, ...]:
    """Of the entry's one token; empty where its sequence asked for none."""
    assert report.logprobs is not None
    logprob = float(report.logprobs[row])
    if math.isnan(logprob):
        return ()
    if report.top_ids is None or report.top_logprobs is None:
        return (TokenIdLogprob(logprob),)
    pairs = zip(report.top_ids[row].tolist(), report.top_logprobs[row].tolist(), strict=True)
    return (TokenIdLogprob(logprob, tuple(pair for pair in pairs if pair[0] >= 0)),)
