"""The front of a model that needs one forward pass per input: a call's input becomes items, their outputs a Result."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic

from engine.protocol.events import Result, Usage
from engine.report import EngineStatus
from engine.tasks.one_pass.host import Item, Job, OnePassHost, OutputStream
from engine.tasks.work import Emit, Input, ModelDescription, Work


class OnePassModel(ABC, Generic[Input]):
    """Base of a `TaskModel` whose model runs in a worker. Subclasses define the three abstract methods."""

    def __init__(self, host: OnePassHost) -> None:
        self.host = host

    @abstractmethod
    async def read(self, task: Input) -> Sequence[Item]:
        """Return the items of an input, at least one. Raises Refused."""

    @abstractmethod
    def render(self, task: Input, outputs: list[Any]) -> Result:
        """Return the result of an input; `outputs` are those of its items, in order."""

    def usage(self, task: Input) -> Usage | None:  # noqa: ARG002
        """Return what a call is charged for; None charges the cost of its items as prompt tokens."""
        return None

    def measure(self, task: Input, outputs: list[Any]) -> Usage | None:  # noqa: ARG002
        """Return what a call with these outputs is charged for; by default `usage`."""
        return self.usage(task)

    def stream(self, task: Input) -> OutputStream | None:  # noqa: ARG002
        """Return how the outputs of a call are sent one by one; None sends one Result."""
        return None

    @abstractmethod
    def describe(self) -> ModelDescription: ...

    async def start(self, work: Work[Input], emit: Emit) -> Job:
        """Queue the items of a call. Raises Refused."""
        items = await self.read(work.task)
        render, measure = functools.partial(self.render, work.task), functools.partial(self.measure, work.task)
        return self.host.submit(items, render, emit, measure, self.stream(work.task))

    @property
    def is_alive(self) -> bool:
        return self.host.is_alive

    def status(self) -> EngineStatus:
        return self.host.status()

    async def close(self) -> None:
        await self.host.close()
