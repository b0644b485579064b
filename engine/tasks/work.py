"""Types shared by all tasks: a call's work, the run that executes it, and the model that runs it.

A run emits events in this event loop, in the order of `engine/protocol/events.py`, and ends with exactly one Finished
or Failed unless it is cancelled; the caller of `cancel` reports the end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from engine.adapters.local_adapter import LocalAdapter
from engine.protocol.events import Event, Failed, FailureReason, Usage
from engine.protocol.tasks.task import Task
from engine.report import EngineStatus, SleepReport

Emit = Callable[[Event], None]
Input = TypeVar("Input", bound=Task)


@dataclass(frozen=True)
class Work(Generic[Input]):
    """One call's work for a model of the input's task: the input, the 32-byte namespace of the call's prefix cache, a
    tenant number for fairness, and the call's adapter if it has one. If `is_ephemeral`, nothing of the call stays in
    caches after its end."""

    task: Input
    namespace: bytes
    tenant: int
    adapter: LocalAdapter | None = None
    is_ephemeral: bool = False


class Refused(Exception):
    """Raised for work that cannot be started; `failure` is sent to the caller."""

    def __init__(
        self, reason: FailureReason, message: str, *, is_retryable: bool = False, retry_after_s: int = 0
    ) -> None:
        super().__init__(message)
        self.failure = Failed(reason, message, is_retryable, retry_after_s=retry_after_s)


class Run(Protocol):
    """Started work."""

    def cancel(self) -> Usage:
        """Emit the output that is held, stop within one step and emit nothing more; return the usage so far."""
        ...


@dataclass(frozen=True)
class ModelDescription:
    """A loaded model as shown to callers and operators.

    `max_model_len` is the number of tokens that one call can have. `example_path` and `example_body` are a request to
    OpenAI's API that the model can respond to. `details` are for the operator.
    """

    max_model_len: int
    example_path: str
    example_body: dict[str, Any]
    details: str = ""


class TaskModel(Protocol):
    """A model that is ready for its task, in its own processes."""

    @property
    def is_alive(self) -> bool:
        """Return False once the model's process has exited; `on_exit` is called soon after."""
        ...

    async def start(self, work: Work[Any], emit: Emit) -> Run:
        """Start the work of a call of the model's task. Raises Refused. If cancelled, leaves nothing behind."""
        ...

    def describe(self) -> ModelDescription: ...

    def status(self) -> EngineStatus: ...

    async def close(self) -> None:
        """End the model's processes. Open runs fail as retryable."""
        ...


@runtime_checkable
class Sleeper(Protocol):
    """A TaskModel that may be able to give its memory back and keep its processes. Both methods raise SleepFailed, and
    ModelLoadError if a process has ended."""

    @property
    def can_sleep(self) -> bool: ...

    async def sleep(self, snapshot: str) -> SleepReport:
        """Give the memory of weights and KV cache back; `snapshot` is the memory file for the weights. Only for models
        without calls."""
        ...

    async def wake(self) -> SleepReport:
        """Get the memory back, with an empty KV cache."""
        ...
