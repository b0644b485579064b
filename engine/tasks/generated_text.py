"""Generated text: separates reasoning and tool calls from content, and finds stop strings in content.

A stop string inside a call's arguments or reasoning does not end the output. Knows text only.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.text.detokenizer import StopStringFinder
from engine.tool_calls.call_parser import OutputPiece
from engine.tool_calls.output_parser import OutputParser


class GeneratedText:
    """The text of one sequence; `parser` is None if the output is plain text."""

    def __init__(self, stops: StopStringFinder, parser: OutputParser | None) -> None:
        self._stops = stops
        self._parser = parser

    @property
    def is_parsed(self) -> bool:
        """Return True if parts of the output may be something other than text."""
        return self._parser is not None

    @property
    def is_plain(self) -> bool:
        """Return True if all output is text, which cannot end the sequence."""
        return self._parser is None and not self._stops.has_stops

    @property
    def is_reasoning_text(self) -> bool:
        """Return True if the next text is part of the reasoning."""
        return self._parser is not None and self._parser.is_reasoning

    @property
    def num_calls(self) -> int:
        """Number of complete tool calls so far."""
        return 0 if self._parser is None else self._parser.num_calls

    @property
    def is_over(self) -> bool:
        """Return True if nothing that follows belongs to the output."""
        return self._stops.is_stopped or (self._parser is not None and self._parser.is_complete)

    @property
    def stop(self) -> str | None:
        """The stop string that ended the output."""
        return self._stops.matched

    def push(self, text: str) -> list[OutputPiece]:
        """Return the pieces that can be sent now; never an empty text."""
        if self._parser is not None:
            return self._without_stops(self._parser.push(text))
        visible = self._stops.push(text)
        return [visible] if visible else []

    def flush(self, *, is_cut: bool = False) -> list[OutputPiece]:
        """Return the pieces that were held back when the sequence ended. `is_cut` is true if it ended at the token
        limit."""
        pieces = self._without_stops(self._parser.flush(is_cut=is_cut)) if self._parser is not None else []
        held_back = self._stops.flush()
        return [*pieces, held_back] if held_back else pieces

    def _without_stops(self, pieces: Sequence[OutputPiece]) -> list[OutputPiece]:
        """Return the pieces up to a stop string.

        Text that may be the start of a stop string is held back until the next piece decides. A tool call always
        releases it, because stop strings do not continue across calls.
        """
        visible: list[OutputPiece] = []
        for piece in pieces:
            if self._stops.is_stopped:
                break
            if isinstance(piece, str):
                visible.append(self._stops.push(piece))
            else:
                visible += [self._stops.flush(), piece]
        return [piece for piece in visible if piece != ""]
