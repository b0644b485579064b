"""What every shape of an answer can do: tell an outcome whole, or piece by piece as frames of an event stream. Pure.

One file each for the shapes themselves. A frame's constant bytes are rendered once for a stream. Knows no transport and
no timing: `gateway/streaming.py` has those.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from engine.protocol.events import ChoiceEnded, Finished, Started, TokenLogprob, ToolCallDelta
from engine.protocol.outcome import Outcome
from gateway import envelope
from gateway.errors import Refusal

DONE = b"data: [DONE]\n\n"


class Shape(Protocol):
    """One way to tell an outcome. `whole` raises Refusal when the outcome is not what was asked for. The other methods
    give complete frames: `begin` those before any piece, `end` the closing one, `error` the last one of a stream that
    breaks."""

    def whole(self, outcome: Outcome) -> bytes: ...
    def begin(self, started: Started) -> bytes: ...
    def text(self, text: str, logprobs: Sequence[TokenLogprob], choice: int = 0) -> bytes: ...
    def reasoning(self, text: str, choice: int = 0) -> bytes: ...
    def tool_call(self, delta: ToolCallDelta) -> bytes: ...
    def choice_end(self, ended: ChoiceEnded) -> bytes: ...
    def end(self, finished: Finished) -> bytes: ...
    def error(self, refusal: Refusal) -> bytes: ...


class Plain:
    """A shape whose streams begin with what is said, and break alike."""

    def begin(self, _started: Started) -> bytes:
        return b""

    def error(self, refusal: Refusal) -> bytes:
        return error_frame(refusal)


def error_frame(refusal: Refusal) -> bytes:
    """The last event of a stream that breaks; the same in both families."""
    body = {"error": envelope.openai_error(refusal), "errors": [envelope.error_entry(refusal)]}
    return b"data: " + envelope.encode(body) + b"\n\n"


class NotStreamed(Plain):
    """A shape that has no pieces."""

    def text(self, _text: str, _logprobs: Sequence[TokenLogprob], _choice: int = 0) -> bytes:
        raise AssertionError("this task does not stream")

    def choice_end(self, _ended: ChoiceEnded) -> bytes:
        raise AssertionError("this task does not stream")

    def reasoning(self, _text: str, _choice: int = 0) -> bytes:
        raise AssertionError("this task does not stream")

    def tool_call(self, _delta: ToolCallDelta) -> bytes:
        raise AssertionError("this task does not stream")

    def end(self, _finished: Finished) -> bytes:
        raise AssertionError("this task does not stream")
