"""Sampling parameters of a step as one block of numbers, as the device's sampler reads them.

Row by row of [columns, K], float32 unless noted: temperature (0 is greedy), top_p, min_p, and as int32 top_k (0 is
off), both halves of the seed, and the position. Seed and position select the random number.
"""

from __future__ import annotations

import numpy as np

from engine.arrays import Floats, Ints
from engine.inputs import SamplingInputs
from engine.sampling.constraints import MIN_TEMPERATURE
from engine.sampling.random_numbers import SECOND_DRAW

TEMPERATURE, TOP_P, MIN_P, TOP_K, SEED_LOW, SEED_HIGH, POSITION = range(7)
NUM_COLUMNS = 7


def pack(inputs: SamplingInputs, columns: Floats, is_second: bool = False) -> None:
    """Write the parameters of K rows to the first K entries of `columns` [NUM_COLUMNS, at least K].

    `is_second` selects the random numbers of rows that sample twice at one position.
    """
    num_rows = inputs.num_rows
    seeds = inputs.seeds ^ SECOND_DRAW if is_second else inputs.seeds
    temperature = inputs.temperature
    columns[TEMPERATURE, :num_rows] = np.where(temperature >= MIN_TEMPERATURE, temperature, 0)
    columns[TOP_P, :num_rows] = inputs.top_p
    columns[MIN_P, :num_rows] = inputs.min_p
    ints: Ints = columns.view(np.int32)
    ints[TOP_K, :num_rows] = inputs.top_k
    ints[SEED_LOW : SEED_HIGH + 1, :num_rows] = seeds.astype("<u8").view(np.int32).reshape(-1, 2).T
    ints[POSITION, :num_rows] = inputs.positions
