"""Everything that one call produced, collected from its events. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field

from engine.protocol.events import (
    ChoiceEnded,
    Data,
    Event,
    Failed,
    Finished,
    FinishReason,
    Result,
    Started,
    Token,
    TokenLogprob,
    ToolCallDelta,
)
from engine.protocol.tools import ToolCall

_ENDS = (Finished, Failed)  # a `Finished | Failed` in isinstance would build a union for every event


class Choice(Struct):
    """One choice so far. `reason` is None until the choice has ended."""

    texts: list[str] = []
    reasoning_texts: list[str] = []
    logprobs: list[TokenLogprob] = []
    tool_call_deltas: list[ToolCallDelta] = []
    reason: FinishReason | None = None

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def reasoning(self) -> str:
        return "".join(self.reasoning_texts)

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        return join_tool_calls(self.tool_call_deltas) if self.tool_call_deltas else ()

    @property
    def finish_reason(self) -> FinishReason:
        """The reason of a choice that has ended."""
        assert self.reason is not None, "only a choice that has ended can be rendered"
        return self.reason


class Outcome(Struct):
    """The output of a call so far; `add` its events in order. `end` is None until the call has ended. `text`,
    `logprobs` and `tool_calls` are those of the first choice. `pieces` are the binary output, in order."""

    choices: list[Choice] = field(default_factory=lambda: [Choice()])
    result: Result | None = None
    pieces: list[bytes] = []
    end: Finished | Failed | None = None
    started: Started = Started()

    def add(self, event: Event) -> None:
        if isinstance(event, Token):
            choice = self._choice(event.choice)
            (choice.reasoning_texts if event.is_reasoning else choice.texts).append(event.text)
            choice.logprobs += event.logprobs
        elif isinstance(event, ToolCallDelta):
            self._choice(event.choice).tool_call_deltas.append(event)
        elif isinstance(event, ChoiceEnded):
            self._choice(event.choice).reason = event.reason
        elif isinstance(event, Result):
            self.result = event
        elif isinstance(event, Data):
            self.pieces.append(event.data)
        elif isinstance(event, Started):
            self.started = event
        elif isinstance(event, _ENDS):
            self.end = event
            if isinstance(event, Finished):
                self.choices[0].reason = event.reason

    def _choice(self, number: int) -> Choice:
        while len(self.choices) <= number:
            self.choices.append(Choice())
        return self.choices[number]

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def logprobs(self) -> list[TokenLogprob]:
        return self.choices[0].logprobs

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        return self.choices[0].tool_calls

    @property
    def finished(self) -> Finished:
        """The end of a successful call."""
        assert isinstance(self.end, Finished), "only a successful call can be rendered"
        return self.end


def join_tool_calls(deltas: Sequence[ToolCallDelta]) -> tuple[ToolCall, ...]:
    """Return the tool calls that the deltas form, by index."""
    pieces: dict[int, list[ToolCallDelta]] = {}
    for delta in deltas:
        pieces.setdefault(delta.index, []).append(delta)
    return tuple(
        ToolCall(id=of[0].id or "", name=of[0].name or "", arguments="".join(delta.arguments for delta in of))
        for _, of in sorted(pieces.items())
    )
