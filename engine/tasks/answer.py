"""An answer's text on its way to who asked: thoughts and calls are told apart, stop strings looked for in content.

A stop string inside a call's arguments or a thought ends nothing. Knows text only.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.text.detokenizer import StopStringFinder
from engine.tool_calls.call_parser import OutputPiece
from engine.tool_calls.output_parser import OutputParser


class Answer:
    """One sequence's answer; `parser` None where it is nothing but text."""

    def __init__(self, stops: StopStringFinder, parser: OutputParser | None) -> None:
        self._stops = stops
        self._parser = parser

    @property
    def is_parsed(self) -> bool:
        """Whether some of it may be no text."""
        return self._parser is not None

    @property
    def is_thinking(self) -> bool:
        """Whether what comes next is part of a thought."""
        return self._parser is not None and self._parser.is_reasoning

    @property
    def num_calls(self) -> int:
        """Whole calls until now."""
        return 0 if self._parser is None else self._parser.num_calls

    @property
    def is_over(self) -> bool:
        """Whether nothing that follows belongs to the answer."""
        return self._stops.is_stopped or (self._parser is not None and self._parser.is_complete)

    @property
    def stop(self) -> str | None:
        """The stop string that ended it."""
        return self._stops.matched

    def push(self, text: str) -> list[OutputPiece]:
        """What can now be said; never an empty text."""
        if self._parser is not None:
            return self._without_stops(self._parser.push(text))
        said = self._stops.push(text)
        return [said] if said else []

    def flush(self, *, is_cut: bool = False) -> list[OutputPiece]:
        """What was held back, when the sequence has ended; `is_cut`: at the token limit."""
        pieces = self._without_stops(self._parser.flush(is_cut=is_cut)) if self._parser is not None else []
        rest = self._stops.flush()
        return [*pieces, rest] if rest else pieces

    def _without_stops(self, pieces: Sequence[OutputPiece]) -> list[OutputPiece]:
        """The pieces up to a stop string; a text that may be the beginning of one is held back, until a call."""
        said: list[OutputPiece] = []
        for piece in pieces:
            if self._stops.is_stopped:
                break
            if isinstance(piece, str):
                said.append(self._stops.push(piece))
            else:
                said += [self._stops.flush(), piece]
        return [piece for piece in said if piece != ""]
