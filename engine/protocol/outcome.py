"""All that one call produced, gathered from its events. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.protocol.events import Embeddings, Event, Failed, Finished, Result, Token, TokenLogprob, ToolCallDelta
from engine.protocol.tasks import ToolCall


@dataclass
class Outcome:
    """A call so far: `add` its events in their order. `end` is None until it has ended."""

    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    deltas: list[ToolCallDelta] = field(default_factory=list)
    embeddings: Embeddings | None = None
    end: Finished | Failed | None = None

    def add(self, event: Event) -> None:
        if isinstance(event, Token):
            self.texts.append(event.text)
            self.logprobs += event.logprobs
        elif isinstance(event, ToolCallDelta):
            self.deltas.append(event)
        elif isinstance(event, Result):
            self.embeddings = event.value
        elif isinstance(event, Finished | Failed):
            self.end = event

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def finished(self) -> Finished:
        """The end of a call that went well."""
        assert isinstance(self.end, Finished), "only a call that went well has an outcome to show"
        return self.end

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        return joined_calls(self.deltas)


def joined_calls(deltas: Sequence[ToolCallDelta]) -> tuple[ToolCall, ...]:
    """The calls of tools that the pieces make up."""
    pieces: dict[int, list[ToolCallDelta]] = {}
    for delta in deltas:
        pieces.setdefault(delta.index, []).append(delta)
    return tuple(
        ToolCall(id=of[0].id or "", name=of[0].name or "", arguments="".join(delta.arguments for delta in of))
        for _, of in sorted(pieces.items())
    )
