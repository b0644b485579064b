"""Events of several calls of one request, as the events of one call that has the choices of all. Pure.

A list of prompts is such a request: each prompt is a call of its own.
"""

from __future__ import annotations

from msgspec import structs

from engine.protocol.events import (
    ChoiceEnded,
    Event,
    Failed,
    Finished,
    FinishReason,
    Started,
    Token,
    Usage,
    total_usage,
)


class JoinedEvents:
    """Joins `num_calls` calls with `num_choices` choices each; choice c of call i becomes i × num_choices + c."""

    def __init__(self, num_calls: int, num_choices: int) -> None:
        self._num_calls = num_calls
        self._num_choices = num_choices
        self._has_started = False
        self._usages: list[Usage] = []
        self._reason: FinishReason = "stop"
        self.has_ended = False

    def add(self, call: int, event: Event) -> list[Event]:
        """Return the joined events that follow from an event of call number `call`; none after the end. Finished
        comes when all calls have finished, Failed when the first of them fails."""
        if self.has_ended:
            return []
        if isinstance(event, Started):
            is_first, self._has_started = not self._has_started, True
            return [event] if is_first else []
        if isinstance(event, Token | ChoiceEnded):
            return [structs.replace(event, choice=call * self._num_choices + event.choice)]
        if isinstance(event, Finished):
            return self._finish(call, event)
        self.has_ended = isinstance(event, Failed)
        return [event]

    def _finish(self, call: int, finished: Finished) -> list[Event]:
        events: list[Event] = [ChoiceEnded(call, finished.reason)] if self._num_choices == 1 else []
        if call == 0:
            self._reason = finished.reason
        self._usages.append(finished.usage)
        if len(self._usages) == self._num_calls:
            events.append(Finished(self._reason, total_usage(self._usages)))
            self.has_ended = True
        return events
