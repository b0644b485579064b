"""The slot table stores a request as columns, with parameters clipped to safe values."""

from __future__ import annotations

import numpy as np
import pytest

from engine.protocol.sampling import Sampling
from engine.scheduling.sequence import Sequence, SequenceRequest, SlotTable, draw_seed


def sequence_of(stop_token_ids: tuple[int, ...] = (), **sampling: object) -> Sequence:
    prompt = np.arange(1, 41, dtype=np.int32)
    request = SequenceRequest(5, prompt, Sampling(**sampling), b"n", 1)  # type: ignore[arg-type]
    return Sequence(request, 3, 60, stop_token_ids, prompt, seed=2**64 - 1, num_cached=16)


def filled(sequence: Sequence, slot: int = 1) -> SlotTable:
    table = SlotTable(num_slots=3, max_model_len=100, block_size=16)
    table.fill(slot, sequence, num_matched=16)
    return table


def test_fill_sets_every_column_of_a_slot():
    table = filled(sequence_of(temperature=0.5, top_k=7, logprobs=2))
    assert table.sequence_id[1] == 5
    assert (table.length[1], table.num_computed[1], table.num_prompt[1], table.max_total_len[1]) == (40, 16, 40, 60)
    assert (table.num_registered[1], table.num_blocks[1], table.tenant[1]) == (1, 0, 3)
    assert (table.sampling.temperature[1], table.sampling.top_k[1], table.sampling.num_logprobs[1]) == (0.5, 7, 2)
    assert table.sampling.seeds[1] == 2**64 - 1
    assert table.block_table.shape == (3, 7)


def test_tokens_can_be_read_by_position_and_by_block():
    table = filled(sequence_of())
    assert table.token_ids[1, :40].tolist() == list(range(1, 41))
    assert table.token_blocks[1, 1].tolist() == list(range(17, 33))


def test_stop_token_columns_grow_with_the_largest_request_and_are_reset():
    table = filled(sequence_of((7, 8, 9)))
    assert table.stop_token_ids[:, 1].tolist() == [7, 8, 9]
    assert table.stop_token_ids[:, 0].tolist() == [-1, -1, -1]
    table.fill(1, sequence_of((4,)), 0)
    assert table.stop_token_ids[:, 1].tolist() == [4, -1, -1]


@pytest.mark.parametrize(
    ("name", "given", "clipped"),
    [
        ("temperature", 1e-30, 0),
        ("temperature", 1e30, 100),
        ("top_p", -1, 0),
        ("top_p", 7, 1),
        ("min_p", 7, 1),
        ("repetition_penalty", 0, 1),
        ("repetition_penalty", -2, 1),
        ("repetition_penalty", 1e-30, 0.01),
        ("repetition_penalty", 1e30, 100),
        ("presence_penalty", -1e30, -100),
        ("frequency_penalty", 1e30, 100),
    ],
)
def test_sampling_parameters_are_clipped(name: str, given: float, clipped: float):
    assert getattr(filled(sequence_of(**{name: given})).sampling, name)[1] == np.float32(clipped)


def test_seed_is_reduced_to_64_bits_and_random_if_missing():
    assert draw_seed(7) == 7
    assert draw_seed(-1) == 2**64 - 1
    assert draw_seed(2**64 + 5) == 5
    assert draw_seed(None) != draw_seed(None)
