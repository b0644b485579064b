"""Several choices for one prompt as one call: each event names its choice, and the call ends when all choices have
ended.

A failure of one choice fails the call and cancels the others. Knows generations and their events.
"""

from __future__ import annotations

import msgspec

from engine.protocol.events import ChoiceEnded, Event, Failed, Finished, FinishReason, Started, Usage
from engine.protocol.sampling import Sampling
from engine.tasks.work import Emit, Run


def of_choice(sampling: Sampling, choice: int) -> Sampling:
    """Return `sampling` for one of several choices: with its own seed, because equal seeds would give equal choices."""
    if sampling.seed is None or not choice:
        return sampling
    return msgspec.structs.replace(sampling, seed=(sampling.seed + choice) % 2**63)


class Choices:
    """The run of a call with several choices. `runs` are the choices' own runs in order; each emits to the `emitter`
    of its number. Usage counts the prompt once and every generated token."""

    def __init__(self, emit: Emit) -> None:
        self.runs: list[Run] = []
        self._emit = emit
        self._is_started = False
        self._is_over = False
        self._ends: dict[int, Finished] = {}

    def emitter(self, choice: int) -> Emit:
        return lambda event: self._on_event(choice, event)

    def cancel(self) -> Usage:
        """Emit the tokens that are held, and free the blocks of all sequences within one step."""
        usage = self._total([run.cancel() for run in self.runs])
        self._is_over = True
        return usage

    def _on_event(self, choice: int, event: Event) -> None:
        if self._is_over:
            return
        if isinstance(event, Finished):
            self._end_choice(choice, event)
        elif isinstance(event, Failed):
            self._emit(msgspec.structs.replace(event, usage=self.cancel()))
        elif not isinstance(event, Started):
            self._emit(event)
        elif not self._is_started:
            self._is_started = True
            self._emit(event)

    def _end_choice(self, choice: int, end: Finished) -> None:
        self._ends[choice] = end
        self._emit(ChoiceEnded(choice, end.reason))
        if len(self._ends) == len(self.runs):
            self._is_over = True
            reason: FinishReason = self._ends[0].reason
            self._emit(Finished(reason, self._total([self._ends[number].usage for number in range(len(self.runs))])))

    def _total(self, usages: list[Usage]) -> Usage:
        return Usage(
            prompt_tokens=usages[0].prompt_tokens,
            cached_tokens=usages[0].cached_tokens,
            completion_tokens=sum(usage.completion_tokens for usage in usages),
            reasoning_tokens=sum(usage.reasoning_tokens for usage in usages),
            device_us=sum(usage.device_us for usage in usages),
            queue_us=usages[0].queue_us,
            prefill_us=usages[0].prefill_us,
            decode_us=max(usage.decode_us for usage in usages),
        )
