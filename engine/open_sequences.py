"""The open sequences of an engine: those that were added and have not ended, and the ends still to be reported."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from engine.adapters.queue import AdapterQueue
from engine.report import RUNNING
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.sequence import Sequence
from engine.structured.matchers import GrammarMatchers


class EndedSequence(NamedTuple):
    """An end that is reported in an entry without a token."""

    sequence_id: int
    finish_code: int
    num_cached: int
    device_us: int


class OpenSequences:
    """Registers sequences, and releases everything they hold when they end."""

    def __init__(self, scheduler: Scheduler, matchers: GrammarMatchers, adapters: AdapterQueue | None) -> None:
        self.ended: list[EndedSequence] = []  # for the next report
        self.num_ephemeral = 0
        self.max_tokens = 0  # sum of the limits of all open sequences
        self._scheduler = scheduler
        self._matchers = matchers
        self._adapters = adapters
        self._sequences: dict[int, Sequence] = {}

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences.values())

    def get(self, sequence_id: int) -> Sequence | None:
        return self._sequences.get(sequence_id)

    def add(self, sequence: Sequence) -> None:
        self._sequences[sequence.sequence_id] = sequence
        self.num_ephemeral += sequence.request.is_ephemeral
        self.max_tokens += sequence.max_total_len

    def end(self, sequence: Sequence, code: int = RUNNING) -> None:
        """End a sequence wherever it is: running, waiting or preempted.

        The next report ends it with `code`; RUNNING means that this step's report does.
        """
        self._scheduler.remove(sequence)
        self.close(sequence, code)

    def close(self, sequence: Sequence, code: int = RUNNING) -> None:
        """End a sequence that the scheduler has already removed."""
        del self._sequences[sequence.sequence_id]
        self.num_ephemeral -= sequence.request.is_ephemeral
        self.max_tokens -= sequence.max_total_len
        self._matchers.release(sequence.sequence_id)
        if self._adapters is not None and sequence.request.adapter is not None:
            self._adapters.release(sequence)
        self._scheduler.counters.leave(sequence.tenant_index)
        if code != RUNNING:
            self.report_end(sequence.sequence_id, code, max(sequence.num_cached, 0), round(sequence.device_us))

    def report_end(self, sequence_id: int, code: int, num_cached: int = 0, device_us: int = 0) -> None:
        """End a sequence in the next report, in an entry without a token."""
        self.ended.append(EndedSequence(sequence_id, code, num_cached, device_us))

    def take_ended(self) -> list[EndedSequence]:
        ended, self.ended = self.ended, []
        return ended
