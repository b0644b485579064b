"""A whole answer's text -> thoughts, content and calls of tools: the readers of these, one behind the other."""

from __future__ import annotations

from typing import Protocol

from engine.tool_calls.family import Family, Tools
from engine.tool_calls.harmony import HarmonyCalls, HarmonyParser
from engine.tool_calls.call_parser import CallParser, Piece, Thought
from engine.tool_calls.reasoning import ThoughtParser


class AnswerParser(Protocol):
    """Reads one answer. `num_calls` counts whole ones; `is_over`: nothing that follows is wanted."""

    @property
    def num_calls(self) -> int: ...

    @property
    def is_over(self) -> bool: ...

    @property
    def is_thinking(self) -> bool:
        """Whether what comes next is part of a thought."""
        ...

    def push(self, text: str) -> list[Piece]: ...
    def flush(self, *, is_cut: bool = False) -> list[Piece]: ...


class ThinkingParser:
    """An answer that a thought may precede. `calls` None: nobody offered tools."""

    def __init__(self, thoughts: ThoughtParser, calls: CallParser | None) -> None:
        self._thoughts = thoughts
        self._calls = calls

    @property
    def num_calls(self) -> int:
        return 0 if self._calls is None else self._calls.num_calls

    @property
    def is_over(self) -> bool:
        return self._calls is not None and self._calls.is_over

    @property
    def is_thinking(self) -> bool:
        return self._thoughts.is_thinking

    def push(self, text: str) -> list[Piece]:
        return self._without_calls(self._thoughts.push(text))

    def flush(self, *, is_cut: bool = False) -> list[Piece]:
        rest = self._without_calls(self._thoughts.flush())
        return rest if self._calls is None else rest + self._calls.flush(is_cut=is_cut)

    def _without_calls(self, pieces: list[Piece]) -> list[Piece]:
        """Texts read for calls; thoughts hold none."""
        if self._calls is None:
            return pieces
        read: list[Piece] = []
        for piece in pieces:
            if isinstance(piece, str):
                read += self._calls.push(piece)
            elif isinstance(piece, Thought):
                read.append(piece)
        return read


def call_parser(family: Family, tools: Tools, *, is_held: bool, is_parallel: bool) -> CallParser | HarmonyParser:
    """Reads an answer of a model of `family` that was offered `tools`."""
    if isinstance(family, HarmonyCalls):
        return HarmonyParser(tools, is_held=is_held, is_parallel=is_parallel)
    return CallParser(family, tools, is_held=is_held, is_parallel=is_parallel)
