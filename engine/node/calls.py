"""The calls open on this node: each Execute gets its events and exactly one end, whatever happens to the rest.

A call waits for its model, runs, and is over at its Finished or Failed, its deadline, its Cancel or the loss of whoever
asked. Knows nothing of sockets: events go to a function that came with the call.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from engine.node.replicas import Replicas, Resident
from engine.protocol.events import Event, Failed, Finished, Usage
from engine.protocol.tasks import TaskInput
from engine.protocol.wire import Execute
from engine.tasks.work import Refused, Run, Work
from telemetry import metrics

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
        self._resident: Resident | None = None
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
            self._resident = await self._calls.replicas.acquire(
                execute.model, execute.revision, _task_name(execute.task)
            )
            work = Work(execute.task, execute.namespace, execute.tenant)
            self._run = await self._resident.ready_model.start(work, self._on_event)
        except Refused as refusal:
            self._end(refusal.failure)
        except Exception:  # one call's bug is one call's failure
            logger.exception("a call could not be started", extra={"request_id": execute.request_id})
            self._end(_BROKEN)

    def _on_event(self, event: Event) -> None:
        if self._is_over:
            return
        if isinstance(event, Finished | Failed):
            self._end(event)
        else:
            self._emit(event)

    def _end_early(self, failure: Failed) -> None:
        if self._is_over:
            return
        self._start.cancel()
        usage = self._run.cancel() if self._run is not None else Usage()
        self._end(Failed(failure.reason, failure.message, failure.is_retryable, usage))

    def _end(self, event: Finished | Failed) -> None:
        self._is_over = True
        self._timer.cancel()
        if self._resident is not None:
            self._calls.replicas.release(self._resident)
        self._calls.forget(self)
        self._emit(event)


def _task_name(task: TaskInput) -> str:
    """The task as manifests call it; the tag on the wire."""
    name = type(task).__struct_config__.tag
    assert isinstance(name, str)
    return name


class Calls:
    """All calls of the node. `max_calls` at once; none begins once the node drains."""

    def __init__(self, replicas: Replicas, max_calls: int) -> None:
        self.replicas = replicas
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
