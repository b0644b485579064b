"""TaskOutput: the base of outputs that travel as the fields of a Result."""

from __future__ import annotations

from typing import Self

import msgspec
from msgspec import Struct

from engine.protocol.events import Result
from engine.protocol.outcome import Outcome


class TaskOutput(Struct, frozen=True):
    """Subclasses add the fields of a task's output."""

    @classmethod
    def of(cls, outcome: Outcome) -> Self:
        """Return the output of a successful call."""
        assert outcome.result is not None
        return cls.of_result(outcome.result)

    @classmethod
    def of_result(cls, result: Result) -> Self:
        return msgspec.convert(result.fields, cls)

    def to_result(self) -> Result:
        return Result(msgspec.to_builtins(self))
