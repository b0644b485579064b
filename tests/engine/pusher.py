"""Pusher: feeds tokens to a runner without an engine."""

from __future__ import annotations

import numpy as np
import torch

from engine.input_builder import build_inputs
from engine.runner import Runner
from engine.scheduling.sequence import SlotTable
from engine.scheduling.step_budget import ScheduledStep


class Pusher:
    """One sequence in blocks of random order, pushed through a runner chunk by chunk."""

    def __init__(self, runner: Runner, seed: int = 0, sequence_id: int = 1) -> None:
        self.runner = runner
        self.table = SlotTable(1, runner.max_model_len, runner.block_size)
        blocks = np.random.default_rng(seed).permutation(runner.num_blocks)
        self.table.block_table[0] = blocks[: self.table.block_table.shape[1]]
        self.table.sequence_id[0] = sequence_id
        self.table.sampling.num_logprobs[0] = -1

    def push(self, token_ids: list[int]) -> torch.Tensor:
        """Logits [V] after the last of `token_ids`, which go through in one step."""
        table, slot = self.table, np.zeros(1, np.int32)
        first = int(table.length[0])
        table.token_ids[0, first : first + len(token_ids)] = token_ids
        table.length[0] += len(token_ids)
        step = ScheduledStep(slot, np.array([len(token_ids)], np.int32))
        logits = self.runner.forward(build_inputs(step, table))  # [1, V]
        table.num_computed[0] = table.length[0]
        return logits[0]
