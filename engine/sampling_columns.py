"""Sampling parameters as columns: one value per row, the same columns in the slot table and in the inputs of a step.

A new parameter is declared and filled here; `sampler.py` and `sampling/` read it from `SamplingInputs`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.arrays import Floats, Ints
from engine.protocol.sampling import Sampling

_MIN_TEMPERATURE = 1e-4  # lower temperatures are greedy
_MAX_PARAMETER = 100.0  # bound of temperature and penalties


@dataclass(frozen=True, eq=False)
class SamplingColumns:
    """Sampling parameters of N rows."""

    temperature: Floats  # [N], 0 is greedy
    top_k: Ints  # [N], 0 is off
    top_p: Floats  # [N], 1 is off
    min_p: Floats  # [N], 0 is off
    repetition_penalty: Floats  # [N], 1 is off
    presence_penalty: Floats  # [N], 0 is off
    frequency_penalty: Floats  # [N], 0 is off
    num_logprobs: Ints  # [N], number of top log-probabilities; -1: no log-probabilities
    seeds: NDArray[np.uint64]  # [N]

    def fill(self, row: int, sampling: Sampling, seed: int) -> None:
        """Set the values of one row.

        Clips parameters to values beyond which they have no further effect but could overflow float32 logits. A
        repetition penalty of 0 or less is off.
        """
        repetition = sampling.repetition_penalty if sampling.repetition_penalty > 0 else 1
        is_greedy = sampling.temperature < _MIN_TEMPERATURE
        self.temperature[row] = 0 if is_greedy else min(sampling.temperature, _MAX_PARAMETER)
        self.top_k[row] = sampling.top_k
        self.top_p[row] = min(max(sampling.top_p, 0), 1)
        self.min_p[row] = min(max(sampling.min_p, 0), 1)
        self.repetition_penalty[row] = min(max(repetition, 1 / _MAX_PARAMETER), _MAX_PARAMETER)
        self.presence_penalty[row] = min(max(sampling.presence_penalty, -_MAX_PARAMETER), _MAX_PARAMETER)
        self.frequency_penalty[row] = min(max(sampling.frequency_penalty, -_MAX_PARAMETER), _MAX_PARAMETER)
        self.num_logprobs[row] = -1 if sampling.logprobs is None else sampling.logprobs
        self.seeds[row] = seed

    def select(self, rows: Ints) -> dict[str, Any]:
        """Return a copy of every column with the values of `rows`, by name."""
        columns = self.__dict__
        return {name: columns[name][rows] for name in _NAMES}

    @cached_property
    def is_filtered(self) -> NDArray[np.bool_]:
        """[N], True for rows with top-k, top-p or min-p. Computed once: not for columns that change."""
        return (self.top_k > 0) | (self.top_p < 1) | (self.min_p > 0)


_NAMES = tuple(field.name for field in fields(SamplingColumns))
_DTYPES = {"top_k": np.int32, "num_logprobs": np.int32, "seeds": np.uint64}  # all others: float32


def zero_columns(num_rows: int) -> dict[str, Any]:
    """Return the arguments of SamplingColumns for rows that will be filled."""
    return {name: np.zeros(num_rows, _DTYPES.get(name, np.float32)) for name in _NAMES}


def needs_history(sampling: Sampling) -> bool:
    """Return True if sampling depends on the tokens before: there is a penalty."""
    return bool(sampling.repetition_penalty != 1 or sampling.presence_penalty or sampling.frequency_penalty)
