"""Replica: the asynchronous handle of one loaded model on this node, whose engine runs in a rank process.

Adds and aborts of one turn of the event loop are sent as one frame. Each step arrives as one frame, and every sink it
concerns is called directly, so that nothing is scheduled per token. Knows token ids only, and imports no torch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from msgspec import Raw

from engine.config import EngineConfig
from engine.processes.child_link import ChildLink
from engine.processes.zygote import Zygote
from engine.ranks import wire
from engine.ranks.output import SequenceOutput, outputs_of
from engine.report import EngineInfo, EngineStatus, Finish, SleepFailed, SleepReport, StepReport
from engine.scheduling.sequence import SequenceRequest
from telemetry.child_process import Child

logger = logging.getLogger(__name__)

Sink = Callable[[SequenceOutput], None]

_ENDED = "the rank process has ended"


class ReplicaLoadError(Exception):
    """The model could not be loaded. The message is for the operator."""


class ReplicaDeviceLost(ReplicaLoadError):
    """The model's device cannot create a context."""


class Replica:
    """The handle of a rank process. Belongs to one event loop. Made by `start`.

    Every sequence added gets exactly one output with a finish, even if the rank dies. `on_exit` is called once, with a
    line that says how, if the rank ends without `close`. A rank that hangs is killed.
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
            has_pending=lambda: bool(self._sinks or self._change is not None),
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
        self._change: asyncio.Future[SleepReport] | None = None  # the sleep or the wake in progress

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
        """Fork a rank process and return when it has loaded the model.

        Raises ReplicaLoadError or ZygoteError. If cancelled, kills the rank, which reads no messages while it loads.
        """
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
        """Process id of the rank."""
        return self._link.pid

    @property
    def num_open(self) -> int:
        """Number of sequences that have not ended."""
        return len(self._sinks)

    @property
    def is_alive(self) -> bool:
        return self._link.is_alive

    def status(self) -> EngineStatus:
        """Return the engine's status after its latest step."""
        return self._status

    def add(self, request: SequenceRequest, sink: Sink) -> None:
        """Start a sequence. `sink` is called in this event loop, never from within this call, and must not block."""
        if not self.is_alive or self._is_draining:
            finish = self._lost_finish if not self.is_alive else "aborted"
            self._loop.call_soon(sink, SequenceOutput((), finish))
            return
        assert request.sequence_id not in self._sinks, "sequence ids are unique"
        try:
            raw = wire.encode_request(request)
        except (TypeError, ValueError, OverflowError) as error:
            logger.warning("request cannot be encoded: %s", type(error).__name__)
            self._loop.call_soon(sink, SequenceOutput((), "error"))
            return
        self._sinks[request.sequence_id] = sink
        self._adds.append(raw)
        self._flush_soon()

    def abort(self, sequence_id: int) -> None:
        """End a sequence within one step. Its sink gets "aborted", or the finish with which it ended before that."""
        if sequence_id in self._sinks:
            self._aborts.append(sequence_id)
            self._flush_soon()

    async def drain(self) -> None:
        """Reject new sequences, and return when every open sequence has ended."""
        self._is_draining = True
        if self._sinks:
            future = self._loop.create_future()
            self._drained.append(future)
            await future

    async def sleep(self, snapshot: str) -> SleepReport:
        """Let the rank give its memory back; `snapshot` is the memory file for its weights. Open sequences end first.

        Raises SleepFailed, or ReplicaLoadError if the rank ends.
        """
        return await self._request(wire.Sleep(snapshot))

    async def wake(self) -> SleepReport:
        """Let the rank get its memory back. Raises as `sleep` does."""
        return await self._request(wire.Wake())

    async def _request(self, change: wire.Sleep | wire.Wake) -> SleepReport:
        if not self.is_alive:
            raise ReplicaLoadError(_ENDED)
        assert self._change is None, "one change at a time"
        future = self._change = self._loop.create_future()
        future.add_done_callback(_retrieve_exception)
        self._flush()  # aborts first
        self._link.send(wire.encode_frame(change))
        return await asyncio.shield(future)

    async def close(self, *, at_once: bool = False) -> None:
        """End the rank process; open sequences get "aborted". `at_once` kills it."""
        await self._link.close(at_once=at_once)
        if self._loaded.done() and not self._loaded.cancelled():
            self._loaded.exception()  # retrieved, so that asyncio does not log it

    # ── to the rank ──

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
        message = wire.decode_rank_message(payload)
        if isinstance(message, wire.Stepped):
            self._status = message.status
            if message.report is not None:
                self._deliver(message.report)
        elif isinstance(message, wire.SleepDone):
            self._on_changed(message)
        elif isinstance(message, wire.Loaded):
            self._status = message.status
            self._link.watch_with(message.follower_pids)
            if not self._loaded.done():
                self._loaded.set_result(message.info)
        elif not self._loaded.done():
            kind = ReplicaDeviceLost if message.is_device_lost else ReplicaLoadError
            self._loaded.set_exception(kind(message.message))

    def _on_changed(self, done: wire.SleepDone) -> None:
        change, self._change = self._change, None
        assert change is not None, "the rank responds to a request"
        if done.report is None:
            change.set_exception(SleepFailed(done.failure))
        else:
            change.set_result(done.report)

    def _deliver(self, report: StepReport) -> None:
        for sequence_id, output in outputs_of(report):
            sink = self._sinks.pop(sequence_id, None) if output.finish else self._sinks.get(sequence_id)
            if sink is not None:
                self._call(sequence_id, sink, output)
        self._resolve_drained()

    def _call(self, sequence_id: int, sink: Sink, output: SequenceOutput) -> None:
        """Call a sink. If it raises, its sequence is aborted; others are not affected."""
        try:
            sink(output)
        except Exception as error:
            logger.exception("sink failed: %s", type(error).__name__)
            self.abort(sequence_id)
            self._sinks.pop(sequence_id, None)

    @property
    def _lost_finish(self) -> Finish:
        """The finish of sequences that are open when the connection to the rank ends."""
        return "aborted" if self._link.is_closing else "crashed"

    def _on_lost(self) -> None:
        if not self._loaded.done():
            self._loaded.set_exception(ReplicaLoadError("the rank process ended while loading; see its log"))
        change, self._change = self._change, None
        if change is not None:
            change.set_exception(ReplicaLoadError(_ENDED))
        sinks, self._sinks = self._sinks, {}
        for sequence_id, sink in sinks.items():
            self._call(sequence_id, sink, SequenceOutput((), self._lost_finish))
        self._resolve_drained()

    def _resolve_drained(self) -> None:
        if not self._sinks:
            for future in self._drained:
                if not future.done():
                    future.set_result(None)
            self._drained.clear()


def _retrieve_exception(future: asyncio.Future[SleepReport]) -> None:
    """Keep asyncio from logging an exception that nobody waits for any more."""
    if not future.cancelled():
        future.exception()
