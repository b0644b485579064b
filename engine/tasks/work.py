"""What every task has in common: the work it is given, the run it makes of it, the model it does it with.

A run says its events through `emit`, in this event loop, in the order of `engine/protocol/events.py`, and ends with
exactly one Finished or Failed unless it is cancelled; who cancels says the end.
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
    """One call's share of a model: the task's input, the 32 bytes that key its prefix cache, a number for fairness, and
    the task's adapter, where it asks for one and this node has it. With `is_ephemeral` nothing of it stays in caches
    once it has ended."""

    task: TaskInput
    namespace: bytes
    tenant: int
    adapter: LocalAdapter | None = None
    is_ephemeral: bool = False


class Refused(Exception):
    """Work that cannot be started; `failure` is what the caller is to be told."""

    def __init__(self, reason: FailureReason, message: str, *, is_retryable: bool = False) -> None:
        super().__init__(message)
        self.failure = Failed(reason, message, is_retryable)


class ModelLoadError(Exception):
    """A model whose files are present could not be loaded. The text says why, for the operator."""


class Run(Protocol):
    """Work that was started."""

    def cancel(self) -> Usage:
        """Stop within one step and say nothing more; returns what was used until now."""
        ...


class TaskModel(Protocol):
    """One model made ready for its task, in processes of its own."""

    @property
    def is_alive(self) -> bool:
        """False once its process is gone; whoever loaded it hears of that very soon."""
        ...

    async def start(self, work: Work, emit: Emit) -> Run:
        """Raises Refused; cancelled meanwhile, it leaves nothing behind."""
        ...

    def status(self) -> EngineStatus: ...

    async def close(self) -> None:
        """End its processes. Runs still open fail as retryable."""
        ...
