"""Several answers to one prompt, told as one call: each piece says whose it is, and the call ends when all have.

A failure of one is the failure of all: the others are cancelled. Knows generations and their events; nothing of how
they come to be.
"""

from __future__ import annotations

import msgspec

from engine.protocol.events import ChoiceEnded, Event, Failed, Finished, FinishReason, Started, Usage
from engine.protocol.sampling import Sampling
from engine.tasks.work import Emit, Run


def of_choice(sampling: Sampling, choice: int) -> Sampling:
    """`sampling` for one of several answers to a prompt: with a seed of its own, or all of them would be equal."""
    if sampling.seed is None or not choice:
        return sampling
    return msgspec.structs.replace(sampling, seed=(sampling.seed + choice) % 2**63)


class Choices:
    """The run of a call for several answers. `runs` are the choices' own, in their order; each emits to `emitter` of
    its number. Usage counts the prompt as the first choice met it, and every token generated."""

    def __init__(self, emit: Emit) -> None:
        self.runs: list[Run] = []
        self._emit = emit
        self._is_started = False
        self._is_over = False
        self._ends: dict[int, Finished] = {}

    def emitter(self, choice: int) -> Emit:
        return lambda event: self._hear(choice, event)

    def cancel(self) -> Usage:
        """Free what all sequences hold within one step."""
        self._is_over = True
        return self._total([run.cancel() for run in self.runs])

    def _hear(self, choice: int, event: Event) -> None:
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
        )
