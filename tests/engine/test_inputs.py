"""Step inputs: positions and KV slots of tokens, logits and parameters of sampling rows."""

from __future__ import annotations

import numpy as np
import torch

from engine.input_builder import build_inputs
from engine.protocol.sampling import Sampling
from engine.scheduling.sequence import Sequence, SequenceRequest, SlotTable
from engine.scheduling.step_budget import ScheduledStep
from tests.engine import one_thread  # noqa: F401


def table_with(*rows: tuple[int, list[int], int, list[int]], **sampling: object) -> SlotTable:
    """Return a table with rows of (slot, token ids, computed tokens, block ids) in blocks of 4."""
    table = SlotTable(num_slots=4, max_model_len=32, block_size=4)
    for slot, token_ids, num_computed, block_ids in rows:
        prompt = np.array(token_ids[:5], np.int32)
        settings = Sampling(**sampling)  # type: ignore[arg-type]
        request = SequenceRequest(100 + slot, prompt, settings, b"n", 0)
        sequence = Sequence(request, 0, 32, (), np.array(token_ids, np.int32), seed=7 + slot)
        table.fill(slot, sequence, 0)
        table.num_computed[slot] = num_computed
        table.block_table[slot, : len(block_ids)] = block_ids
    return table


def step_of(slots: list[int], num_tokens: list[int]) -> ScheduledStep:
    return ScheduledStep(np.array(slots, np.int32), np.array(num_tokens, np.int32))


def test_a_decode_step_has_one_token_a_row() -> None:
    table = table_with((2, [10, 11, 12, 13, 14, 15], 5, [7, 3]), (0, [20], 0, [1]))
    step = build_inputs(step_of([2, 0], [1, 1]), table)
    assert step.token_ids.tolist() == [15, 20]
    assert step.positions.tolist() == [5, 0]
    assert step.slot_mapping.tolist() == [3 * 4 + 1, 1 * 4]
    assert step.context_lens.tolist() == [6, 1]
    assert step.query_starts.tolist() == [0, 1, 2]
    assert step.logit_rows.tolist() == [0, 1]
    assert step.block_tables[0, :2].tolist() == [7, 3]
    assert step.sequence_ids.tolist() == [102, 100]
    assert (step.num_decode_rows, step.num_rows, step.num_tokens) == (2, 2, 2)
    assert {tensor.dtype for tensor in (step.token_ids, step.positions, step.slot_mapping)} == {torch.int64}


def test_a_mixed_step_continues_chunks_where_they_stopped() -> None:
    table = table_with(
        (1, [10, 11], 1, [5]), (3, list(range(30, 42)), 3, [6, 2, 9]), (0, list(range(50, 55)), 0, [4, 8])
    )
    step = build_inputs(step_of([1, 3, 0], [1, 6, 5]), table)
    assert step.token_ids.tolist() == [11, *range(33, 39), *range(50, 55)]
    assert step.positions.tolist() == [1, *range(3, 9), *range(5)]
    assert step.slot_mapping.tolist() == [21, 27, 8, 9, 10, 11, 36, 16, 17, 18, 19, 32]
    assert step.query_starts.tolist() == [0, 1, 7, 12]
    assert step.context_lens.tolist() == [2, 9, 5]
    assert step.num_decode_rows == 1
    assert step.logit_rows.tolist() == [0, 11]  # slot 3 still has tokens to come
    assert step.sampling.num_rows == 2


def test_sampling_parameters_belong_to_the_rows_that_sample() -> None:
    table = table_with((0, [1, 2, 3], 2, [0]), (1, [1, 2, 3, 4], 0, [1]), temperature=0.5, top_k=9, logprobs=2)
    table.sampling.temperature[1] = 0.25
    sampling = build_inputs(step_of([0, 1], [1, 2]), table).sampling
    assert (sampling.temperature.tolist(), sampling.top_k.tolist(), sampling.num_logprobs.tolist()) == ([0.5], [9], [2])
    assert sampling.seeds.tolist() == [7]
    assert sampling.positions.tolist() == [3]  # the token to be drawn will be the fourth
    assert sampling.histories == ()


def test_only_rows_with_penalties_have_a_history() -> None:
    table = table_with((0, [1, 2, 3, 4, 5, 6, 7], 6, [0, 2]), presence_penalty=0.5)
    plain = table_with((1, [9], 0, [1])).sequence_at(1)
    table.fill(1, plain, 0)
    sampling = build_inputs(step_of([1, 0], [1, 1]), table).sampling
    assert [(history.row, history.num_prompt) for history in sampling.histories] == [(1, 5)]
    assert sampling.histories[0].token_ids.tolist() == [1, 2, 3, 4, 5, 6, 7]


def test_step_arrays_are_copies_of_the_table() -> None:
    """The table may change while a step's arrays are still read."""
    table = table_with((0, [1, 2, 3], 2, [0]))
    step = build_inputs(step_of([0], [1]), table)
    table.token_ids[:] = table.block_table[:] = table.num_computed[:] = -1
    assert (step.token_ids.tolist(), step.context_lens.tolist(), step.block_tables[0, 0]) == ([3], [3], 0)
