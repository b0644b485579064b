"""Admission: a new sequence waits for its adapter, then for its matcher, and then joins the scheduler's queue."""

from __future__ import annotations

from engine.adapters.queue import AdapterQueue
from engine.open_sequences import OpenSequences
from engine.report import ERROR, RUNNING
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.sequence import Sequence
from engine.structured.matchers import GrammarMatchers

_MAX_WAIT_S = 0.005  # for an adapter or a matcher, when the engine has nothing else to do


class Admission:
    """Belongs to one engine. `admit` moves every sequence whose resources are available to the scheduler's queue."""

    def __init__(
        self, sequences: OpenSequences, scheduler: Scheduler, matchers: GrammarMatchers, adapters: AdapterQueue | None
    ) -> None:
        self._sequences = sequences
        self._scheduler = scheduler
        self._matchers = matchers
        self._adapters = adapters

    def enter(self, sequence: Sequence) -> None:
        """Begin with a sequence that was just added."""
        if sequence.request.adapter is not None and self._adapters is not None:
            self._adapters.add(sequence)
            if not sequence.adapter:
                return
        self._prepare_matcher(sequence)

    def admit(self) -> None:
        """Queue sequences whose adapter and matcher are ready. Waits briefly if the engine has nothing else to do."""
        if self._adapters is not None and self._adapters.num_waiting:
            self._take_adapters(self._adapters)
        if self._matchers.is_compiling:
            self._take_matchers()

    def _prepare_matcher(self, sequence: Sequence) -> None:
        request = sequence.request
        if request.constraint is None:
            self._scheduler.queue(sequence)
        else:
            self._matchers.submit(request.sequence_id, request.constraint, request.namespace)

    def _take_adapters(self, adapters: AdapterQueue) -> None:
        is_idle = not (self._scheduler.has_sequences or self._sequences.ended or self._matchers.is_compiling)
        for sequence, code in adapters.take_ready(_MAX_WAIT_S if is_idle else 0):
            if code == RUNNING:
                self._prepare_matcher(sequence)
            else:
                self._sequences.end(sequence, code)
        for sequence in adapters.take_yielded(self._scheduler.waiting.in_order):
            self._scheduler.waiting.discard(sequence)

    def _take_matchers(self) -> None:
        is_idle = not (self._scheduler.has_sequences or self._sequences.ended)
        for sequence_id, is_ready in self._matchers.take_ready(_MAX_WAIT_S if is_idle else 0):
            sequence = self._sequences.get(sequence_id)
            assert sequence is not None, "matchers of ended sequences are forgotten"
            if is_ready:
                self._scheduler.queue(sequence)
            else:
                self._sequences.end(sequence, ERROR)
