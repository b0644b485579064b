"""A step whose results are not known yet, as the engine remembers it from its launch until its output is collected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from engine.arrays import Ints, Longs
from engine.inputs import StepInputs, StepOutput
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.step_budget import ScheduledStep


class PendingOutput(Protocol):
    """The output of a step that a runner has launched."""

    def wait(self) -> StepOutput:
        """Wait for the device and return the output. Called once."""


@dataclass(frozen=True, eq=False)
class FinishedOutput:
    """The output of a runner that computes in `launch`."""

    output: StepOutput

    def wait(self) -> StepOutput:
        return self.output


@dataclass(frozen=True, eq=False)
class LaunchedStep:
    """A launched step, with the counts of tokens at its launch.

    Its sequences may end, be aborted or be preempted before the output is collected: `is_current` tells which rows
    still belong to the sequence that they were computed for.
    """

    scheduled: ScheduledStep
    inputs: StepInputs
    output: PendingOutput
    epochs: Longs  # [R], `SlotTable.epoch` of each row
    num_computed: Ints  # [R], tokens with KV after the step
    sampling: Longs  # [K], indices of the rows that sample
    lengths: Ints  # [K], index of the sampled token in its sequence

    @classmethod
    def advance(
        cls, scheduled: ScheduledStep, inputs: StepInputs, output: PendingOutput, scheduler: Scheduler
    ) -> LaunchedStep:
        """Count a launched step in `scheduler`. The tokens of a step with drafts are counted when it is collected."""
        table, slots = scheduler.table, scheduled.slots
        if scheduled.num_drafts is None:
            num_computed, sampling = scheduler.advance(scheduled)
        else:
            num_computed, sampling = table.num_computed[slots], np.empty(0, np.int64)
        lengths = table.length[slots[sampling]] - 1
        return cls(scheduled, inputs, output, table.epoch[slots], num_computed, sampling, lengths)

    def is_current(self, epoch: Longs) -> NDArray[np.bool_]:
        """Return the rows [R] whose slot still has the same sequence, given the present `SlotTable.epoch`."""
        current: NDArray[np.bool_] = epoch[self.scheduled.slots] == self.epochs
        return current
