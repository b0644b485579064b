"""A FakeRunner that works like a device: launched steps and wipes are queued and run in order, as late as possible.

The block tables and the last tokens of all slots are the runner's own: a step changes the tables by its updates, and
reads the tokens that the host did not know at its launch.
"""

from __future__ import annotations

import copy
from collections import deque
from dataclasses import dataclass, replace

import numpy as np
import torch

from engine.arrays import Ints, ceil_div
from engine.inputs import StepInputs, StepOutput
from engine.scheduling.sequence import UNKNOWN_TOKEN
from tests.fakes.runner import VOCAB_SIZE, FakeRunner

STEP_US = 100.0  # device time of a step


@dataclass(eq=False)
class QueuedStep:
    """A launched step. `wait` runs everything that was queued up to it."""

    runner: AheadRunner
    inputs: StepInputs
    result: StepOutput | None = None

    def wait(self) -> StepOutput:
        while self.result is None:
            self.runner.run_next()
        return self.result


class AheadRunner(FakeRunner):
    """See the module. `most_queued` is the largest number of steps that were queued at once."""

    def __init__(self, *, num_slots: int, num_blocks: int = 64, max_model_len: int = 512) -> None:
        super().__init__(num_blocks=num_blocks, max_model_len=max_model_len)
        self.can_run_ahead = True
        self.most_queued = 0
        self.num_fed_on_device = 0  # tokens that the host did not know
        self.busy_us = 0.0
        self.last_tokens = np.full(num_slots, VOCAB_SIZE, np.int32)
        max_blocks = min(ceil_div(max_model_len, self.block_size), num_blocks)
        self.block_tables = np.full((num_slots, max_blocks), -1, np.int32)
        self._queue: deque[QueuedStep | Ints] = deque()

    def launch(self, inputs: StepInputs) -> QueuedStep:
        step = QueuedStep(self, copy.deepcopy(inputs))  # the host may change its arrays from now on
        self._queue.append(step)
        self.most_queued = max(self.most_queued, sum(isinstance(each, QueuedStep) for each in self._queue))
        return step

    def wipe(self, block_ids: Ints) -> None:
        self._queue.append(block_ids.copy())

    def run_next(self) -> None:
        """Run what was queued first."""
        first = self._queue.popleft()
        if not isinstance(first, QueuedStep):
            for block in first.tolist():
                self.erase(block)
            return
        inputs = first.inputs
        assert inputs.slots is not None
        assert inputs.block_updates is not None
        entries, blocks = inputs.block_updates
        self.block_tables.reshape(-1)[entries] = blocks
        token_slots = np.repeat(inputs.slots, np.diff(inputs.query_starts))
        token_ids = inputs.token_ids.numpy()
        is_unknown = token_ids == UNKNOWN_TOKEN
        self.num_fed_on_device += int(is_unknown.sum())
        token_ids = np.where(is_unknown, self.last_tokens[token_slots], token_ids)
        tables = self.block_tables[inputs.slots]
        output = self.run(replace(inputs, token_ids=torch.from_numpy(token_ids), block_tables=tables))
        self.last_tokens[token_slots[inputs.logit_rows.numpy()]] = output.token_ids
        self.busy_us += STEP_US
        first.result = replace(output, device_us=STEP_US)

    def erase(self, block: int) -> None:
        """Forget a block's content."""
        first = block * self.block_size
        self._tokens[first : first + self.block_size] = -1
