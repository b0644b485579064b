"""Marks of reasoning in model outputs, and the parser that separates reasoning from the text after it.

Reasoning stands at the beginning of the output, between two marks; some templates write the first mark at the end of
the prompt. White space around reasoning is dropped. The marks may be control tokens.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from engine.text.detokenizer import start_of_partial
from engine.tool_calls.call_parser import OutputPiece, ReasoningPiece

Phase = Literal["may_reason", "reasons", "content"]
_State = Literal["start", "opened", "begun", "reasoning", "closed", "content"]


@dataclass(frozen=True)
class Reasoning:
    """The format `opening reasoning closing`, followed by the content, which some models put between marks as well.
    `opening_mark` is the control token in `opening`, if this is only a part of the opening."""

    opening: str
    closing: str
    content_opening: str = ""
    content_closing: str = ""
    opening_mark: str = ""

    @property
    def marks(self) -> tuple[str, ...]:
        """Marks that may be control tokens of the model."""
        marks = (self.opening_mark or self.opening, self.closing, self.content_opening, self.content_closing)
        return tuple(filter(None, marks))

    def phase_after(self, prompt_end: str) -> Phase:
        """Return the phase in which the output begins after a prompt that ends with `prompt_end`."""
        end = prompt_end.rstrip()
        if end.endswith(self.opening.rstrip()):
            return "reasons"
        return "content" if end.endswith(self.closing) else "may_reason"


THINK = Reasoning("<think>", "</think>")
GRANITE = Reasoning("<think>", "</think>", "<response>", "</response>")
MISTRAL = Reasoning("[THINK]", "[/THINK]")
COHERE = Reasoning("<|START_THINKING|>", "<|END_THINKING|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>")
APERTUS = Reasoning("<|inner_prefix|>", "<|inner_suffix|>")
GEMMA = Reasoning("<|channel>thought", "<channel|>", opening_mark="<|channel>")
REASONINGS = (GRANITE, COHERE, MISTRAL, APERTUS, GEMMA, THINK)


def find_reasoning(words: Collection[str]) -> Reasoning | None:
    """Return the reasoning format whose marks occur in a chat template's string constants `words`; None if there is
    none."""

    def is_spelled(mark: str) -> bool:
        return any(mark in word for word in words)

    for reasoning in REASONINGS:
        if all(map(is_spelled, reasoning.marks)):
            return reasoning
    return THINK if is_spelled(THINK.opening) or is_spelled(THINK.closing) else None


class ReasoningParser:
    """Splits an output that begins in `phase` into reasoning and text. An `OutputParser` for output without calls."""

    num_calls = 0
    is_complete = False

    def __init__(self, reasoning: Reasoning, phase: Phase) -> None:
        self._reasoning = reasoning
        begin: dict[Phase, _State] = {"may_reason": "start", "reasons": "opened", "content": "closed"}
        self._state = begin[phase]
        self._buffer = ""

    @property
    def is_reasoning(self) -> bool:
        """True if the next text is part of the reasoning."""
        return self._state in ("opened", "begun", "reasoning")

    def push(self, text: str) -> list[OutputPiece]:
        """Return the pieces that are certain now."""
        self._buffer += text
        pieces: list[OutputPiece] = []
        while self._advance(pieces):
            pass
        return pieces

    def flush(self, *, is_cut: bool = False) -> list[OutputPiece]:  # noqa: ARG002
        """Return the text held back, at the end of the output."""
        text, self._buffer = self._buffer, ""
        if self.is_reasoning:
            return [ReasoningPiece(text.rstrip())] if text.strip() else []
        return [text] if text and (self._state != "closed" or text.strip()) else []

    def _advance(self, pieces: list[OutputPiece]) -> bool:
        """Advance to the next state. Returns True if there may be more to parse."""
        if self._state == "content":
            return self._in_content(pieces)
        if self._state == "reasoning":
            return self._in_reasoning(pieces)
        begun = self._buffer.lstrip()
        if self._state == "begun":
            self._buffer = begun
            self._state = "reasoning" if begun else "begun"
            return bool(begun)
        mark = self._reasoning.content_opening if self._state == "closed" else self._reasoning.opening
        if not begun or (begun != mark and mark.startswith(begun)):
            return False
        self._at_mark(begun, mark)
        return True

    def _at_mark(self, begun: str, mark: str) -> None:
        """Parse the mark before the reasoning or before the content, if the output has one."""
        has_mark = bool(mark) and begun.startswith(mark)
        if self._state == "start" and not has_mark:
            content_mark = self._reasoning.content_opening
            self._state = "closed" if content_mark and content_mark[0] == begun[0] else "content"
            return
        self._buffer = begun[len(mark) :] if has_mark else begun
        self._state = "content" if self._state == "closed" else "begun"

    def _in_reasoning(self, pieces: list[OutputPiece]) -> bool:
        closing = self._reasoning.closing
        at = self._buffer.find(closing)
        before = self._buffer[: at if at >= 0 else start_of_partial(self._buffer, closing)]
        text = before.rstrip()
        if text:
            pieces.append(ReasoningPiece(text))
        if at < 0:
            self._buffer = self._buffer[len(text) :]
            return False
        self._buffer = self._buffer[at + len(closing) :]
        self._state = "closed"
        return True

    def _in_content(self, pieces: list[OutputPiece]) -> bool:
        closing = self._reasoning.content_closing
        if not closing:
            size = len(self._buffer)
        else:
            self._buffer = self._buffer.replace(closing, "")
            size = start_of_partial(self._buffer, closing)
        if size:
            pieces.append(self._buffer[:size])
        self._buffer = self._buffer[size:]
        return False
