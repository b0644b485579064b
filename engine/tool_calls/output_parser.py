"""Parsing of a whole model output into reasoning, content and tool calls. Chains the parsers for reasoning and for
calls."""

from __future__ import annotations

from typing import Protocol

from engine.tool_calls.call_parser import CallParser, OutputPiece, ReasoningPiece
from engine.tool_calls.family import Family, Tools
from engine.tool_calls.harmony import HarmonyCalls, HarmonyParser
from engine.tool_calls.reasoning import ReasoningParser


class OutputParser(Protocol):
    """Parses one output. `num_calls` counts complete calls. `is_complete`: all text that follows is ignored."""

    @property
    def num_calls(self) -> int: ...

    @property
    def is_complete(self) -> bool: ...

    @property
    def is_reasoning(self) -> bool:
        """True if the next text is part of the reasoning."""
        ...

    def push(self, text: str) -> list[OutputPiece]: ...
    def flush(self, *, is_cut: bool = False) -> list[OutputPiece]: ...


class ReasoningOutputParser:
    """Parser of an output that may begin with reasoning and may contain calls."""

    def __init__(self, reasoning: ReasoningParser, calls: CallParser) -> None:
        self._reasoning = reasoning
        self._calls = calls

    @property
    def num_calls(self) -> int:
        return self._calls.num_calls

    @property
    def is_complete(self) -> bool:
        return self._calls.is_complete

    @property
    def is_reasoning(self) -> bool:
        return self._reasoning.is_reasoning

    def push(self, text: str) -> list[OutputPiece]:
        return self._parse_calls(self._reasoning.push(text))

    def flush(self, *, is_cut: bool = False) -> list[OutputPiece]:
        return self._parse_calls(self._reasoning.flush()) + self._calls.flush(is_cut=is_cut)

    def _parse_calls(self, pieces: list[OutputPiece]) -> list[OutputPiece]:
        """Parse the text pieces for calls. Reasoning contains none."""
        parsed: list[OutputPiece] = []
        for piece in pieces:
            if isinstance(piece, str):
                parsed += self._calls.push(piece)
            elif isinstance(piece, ReasoningPiece):
                parsed.append(piece)
        return parsed


def make_call_parser(
    family: Family, tools: Tools, *, is_constrained: bool, is_parallel: bool
) -> CallParser | HarmonyParser:
    """Return the parser for an output of a model of `family` that has `tools`."""
    if isinstance(family, HarmonyCalls):
        return HarmonyParser(tools, is_constrained=is_constrained, is_parallel=is_parallel)
    return CallParser(family, tools, is_constrained=is_constrained, is_parallel=is_parallel)
