"""Types shared by all tasks: a call's work, the run that executes it, and the model that runs it.

A run emits events in this event loop, in the order of `engine/protocol/events.py`, and ends with exactly one Finished
or Failed unless it is cancelled; the caller of `cancel` reports the end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from engine.adapters.local_adapter import LocalAdapter
from engine.protocol.events import Event, Failed, FailureReason, Usage
from engine.protocol.tasks.registry import TaskInput
from engine.report import EngineStatus

Emit = Callable[[Event], None]


@dataclass(frozen=True)
class Work:
    """One call's work for a model: the task's input, the 32-byte namespace of its prefix cache, a number for fairness,
    and the task's adapter if it has one. If `is_ephemeral`, nothing of the call stays in caches after its end."""

    task: TaskInput
    namespace: bytes
    tenant: int
    adapter: LocalAdapter | None = None
    is_ephemeral: bool = False


class Refused(Exception):
    """Raised for work that cannot be started; `failure` is sent to the caller."""

    def __init__(self, reason: FailureReason, message: str, *, is_retryable: bool = False) -> None:
        super().__init__(message)
        self.failure = Failed(reason, message, is_retryable)


class ModelLoadError(Exception):
    """Raised if a model whose files are present could not be loaded. The text explains the reason to the operator."""


class Run(Protocol):
    """Started work."""

    def cancel(self) -> Usage:
        """Stop within one step and emit nothing more; return the usage so far."""
        ...


class TaskModel(Protocol):
    """A model that is ready for its task, in its own processes."""

    @property
    def is_alive(self) -> bool:
        """Return False once the model's process has exited; `on_exit` is called soon after."""
        ...

    async def start(self, work: Work, emit: Emit) -> Run:
        """Start the work. Raises Refused. If cancelled meanwhile, it leaves nothing behind."""
        ...

    def status(self) -> EngineStatus: ...

    async def close(self) -> None:
        """End the model's processes. Open runs fail as retryable."""
        ...
