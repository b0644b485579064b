"""The calls open on this node: each Execute gets its events and exactly one end, whatever happens to the rest.

A call waits for its model, runs, and is over at its Finished or Failed, its deadline, its Cancel or the loss of whoever
asked. One that is suspected of ending its model's process waits for its turn first (`suspects.py`). Knows nothing of
sockets: events go to a function that came with the call.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from engine.adapters.local_adapter import LocalAdapter
from engine.protocol.events import Event, Failed, Finished, Token, ToolCallDelta, Usage
from engine.protocol.tasks.registry import TaskInput
from engine.protocol.tasks.text_generation import Adapter
from engine.protocol.wire import Execute
from engine.serving.adapters import NodeAdapters
from engine.serving.replicas import Replicas, Resident
from engine.serving.suspects import Suspects, Suspicion
from engine.tasks.work import Refused, Run, Work
from telemetry import metrics
from telemetry.clock import SYSTEM_CLOCK, Clock

logger = logging.getLogger(__name__)

MAX_DEADLINE_S = 24 * 3600.0

_DRAINING = Failed("draining", "the node is leaving", is_retryable=True)
_FULL = Failed("out_of_capacity", "the node has too many calls open", is_retryable=True)
_CANCELLED = Failed("aborted", "cancelled by the caller")
_LATE = Failed("timeout", "the deadline passed")
_BROKEN = Failed("internal", "the node could not do this; its log says why", is_retryable=True)


class Call:
    """One Execute on its way to its end. `emit` is called in this event loop, never after the end."""

    def __init__(self, calls: Calls, execute: Execute, emit: Callable[[Event], None]) -> None:
        self._calls = calls
        self._execute = execute
        self._emit = emit
        self._is_over = False
        self._suspicion: Suspicion | None = None
        self._resident: Resident | None = None
        self._adapter: Adapter | None = None  # taken, to be given back
        self._load = 0  # which of the resident's processes has it
        self._run: Run | None = None
        loop = asyncio.get_running_loop()
        deadline_s = max(0.0, min(MAX_DEADLINE_S, execute.deadline_s))  # in this order NaN is the longest
        self._timer = loop.call_later(deadline_s, self._end_early, _LATE)
        self._start = loop.create_task(self._begin())

    def cancel(self) -> None:
        """Stop, with Failed("aborted") as the last event unless it is over already."""
        self._end_early(_CANCELLED)

    def abandon(self) -> None:
        """Stop and say nothing: nobody listens any more."""
        self._emit = lambda _event: None
        self._end_early(_CANCELLED)

    async def _begin(self) -> None:
        execute = self._execute
        try:
            refusal = await self._clear_suspicion()
            if refusal is not None:
                return self._end(refusal)
            self._resident = await self._calls.replicas.acquire(
                execute.model, execute.revision, _task_name(execute.task)
            )
            self._load = self._resident.num_loads
            work = Work(
                execute.task,
                execute.namespace,
                execute.tenant,
                await self._take_adapter(),
                execute.is_ephemeral,
            )
            self._run = await self._resident.ready_model.start(work, self._on_event)
        except Refused as refusal:
            self._end(refusal.failure)
        except Exception:  # one call's bug is one call's failure
            logger.exception("a call could not be started", extra={"request_id": execute.request_id})
            self._end(_BROKEN)

    async def _take_adapter(self) -> LocalAdapter | None:
        """The files of the adapter that the call asks for, kept until its end. Raises Refused."""
        adapter = getattr(self._execute.task, "adapter", None)
        if adapter is None:
            return None
        if self._calls.adapters is None:
            raise Refused("invalid_input", "'/lora' cannot be used: there are no adapters here")
        local = await self._calls.adapters.take(adapter)
        self._adapter = adapter
        return local

    async def _clear_suspicion(self) -> Failed | None:
        """Wait until this call may run; its end if it may not."""
        found = self._calls.suspects.look_at(self._execute)
        if isinstance(found, Suspicion):
            self._suspicion = found
            return await found.wait_for_turn()
        return found

    def _on_event(self, event: Event) -> None:
        if self._is_over:
            return
        if isinstance(event, Finished | Failed):
            self._end(self._blamed(event) if isinstance(event, Failed) and event.num_deaths else event)
            return
        if self._suspicion is not None and isinstance(event, Token | ToolCallDelta):
            self._suspicion.count(event.num_tokens)
        self._emit(event)

    def _blamed(self, failed: Failed) -> Failed:
        """Its model's process died with it."""
        assert self._resident is not None
        before = self._suspicion.num_deaths if self._suspicion is not None else 0
        death = (self._resident.model, self._resident.revision, self._load)
        failed, num_explained = self._calls.suspects.blame(self._execute, before, failed.usage, death)
        if num_explained:
            self._calls.replicas.excuse(self._resident, num_explained, f"call {self._execute.request_id} was the cause")
        return failed

    def _end_early(self, failure: Failed) -> None:
        if self._is_over:
            return
        self._start.cancel()
        usage = self._run.cancel() if self._run is not None else Usage()
        self._end(Failed(failure.reason, failure.message, failure.is_retryable, usage))

    def _end(self, event: Finished | Failed) -> None:
        self._is_over = True
        self._timer.cancel()
        if self._suspicion is not None:
            self._suspicion.leave()
        if self._resident is not None:
            self._calls.replicas.release(self._resident)
        if self._adapter is not None and self._calls.adapters is not None:
            self._calls.adapters.give(self._adapter)
        self._calls.forget(self)
        self._emit(event)


def _task_name(task: TaskInput) -> str:
    """The task as manifests call it; the tag on the wire."""
    name = type(task).__struct_config__.tag
    assert isinstance(name, str)
    return name


class Calls:
    """All calls of the node. `max_calls` at once; none begins once the node drains."""

    def __init__(
        self, replicas: Replicas, max_calls: int, clock: Clock = SYSTEM_CLOCK, adapters: NodeAdapters | None = None
    ) -> None:
        """Without `adapters`, calls that ask for one are refused."""
        self.replicas = replicas
        self.adapters = adapters
        self.suspects = Suspects(clock)
        self.is_draining = False
        self._max_calls = max_calls
        self._open: set[Call] = set()
        self._all_ended = asyncio.Event()
        self._all_ended.set()

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, execute: Execute, emit: Callable[[Event], None]) -> Call | None:
        """Begin a call; None when it was refused, which `emit` has then heard."""
        if self.is_draining or len(self._open) >= self._max_calls:
            emit(_DRAINING if self.is_draining else _FULL)
            return None
        call = Call(self, execute, emit)
        self._open.add(call)
        self._all_ended.clear()
        metrics.NODE_CALLS.set(len(self._open))
        return call

    def forget(self, call: Call) -> None:
        """The call is over."""
        self._open.discard(call)
        metrics.NODE_CALLS.set(len(self._open))
        if not self._open:
            self._all_ended.set()

    async def drain(self, timeout_s: float) -> None:
        """Begin nothing more; return when every call is over, cancelling what is left after `timeout_s`."""
        self.is_draining = True
        try:
            await asyncio.wait_for(self._all_ended.wait(), timeout_s)
        except TimeoutError:
            self.cancel_all()

    def cancel_all(self) -> None:
        """End every call now."""
        for call in list(self._open):
            call.cancel()
