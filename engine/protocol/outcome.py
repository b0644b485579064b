"""All that one call produced, gathered from its events. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field

from engine.protocol.events import (
    ChoiceEnded,
    Embeddings,
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
from engine.protocol.tasks import ToolCall

_ENDS = (Finished, Failed)  # asked of every event: a union would be made anew each time


class Choice(Struct):
    """One answer so far. `reason` is None until it has ended."""

    texts: list[str] = []
    thoughts: list[str] = []
    logprobs: list[TokenLogprob] = []
    deltas: list[ToolCallDelta] = []
    reason: FinishReason | None = None

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def reasoning(self) -> str:
        """What the model thought before it answered."""
        return "".join(self.thoughts)

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        return joined_calls(self.deltas) if self.deltas else ()

    @property
    def why(self) -> FinishReason:
        """Why an answer that has ended did."""
        assert self.reason is not None, "only a choice that has ended can be shown"
        return self.reason


class Outcome(Struct):
    """A call so far: `add` its events in their order. `end` is None until it has ended. What is asked of it as if it
    had one answer is its first choice's."""

    choices: list[Choice] = field(default_factory=lambda: [Choice()])
    embeddings: Embeddings | None = None
    end: Finished | Failed | None = None
    started: Started = Started()

    def add(self, event: Event) -> None:
        if isinstance(event, Token):
            choice = self._choice(event.choice)
            (choice.thoughts if event.is_reasoning else choice.texts).append(event.text)
            choice.logprobs += event.logprobs
        elif isinstance(event, ToolCallDelta):
            self._choice(event.choice).deltas.append(event)
        elif isinstance(event, ChoiceEnded):
            self._choice(event.choice).reason = event.reason
        elif isinstance(event, Result):
            self.embeddings = event.value
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
    def finished(self) -> Finished:
        """The end of a call that went well."""
        assert isinstance(self.end, Finished), "only a call that went well has an outcome to show"
        return self.end

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        return self.choices[0].tool_calls


def joined_calls(deltas: Sequence[ToolCallDelta]) -> tuple[ToolCall, ...]:
    """The calls of tools that the pieces make up."""
    pieces: dict[int, list[ToolCallDelta]] = {}
    for delta in deltas:
        pieces.setdefault(delta.index, []).append(delta)
    return tuple(
        ToolCall(id=of[0].id or "", name=of[0].name or "", arguments="".join(delta.arguments for delta in of))
        for _, of in sorted(pieces.items())
    )
