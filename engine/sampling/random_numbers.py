"""Random numbers of sampling: a function of seed and position, so that a row samples the same token in any batch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engine.arrays import Longs

SECOND_DRAW = np.uint64(0x5851F42D4C957F2D)  # XORed with a seed for a row that samples twice at one position
_STEP = np.uint64(0x9E3779B97F4A7C15)


def uniform(seeds: NDArray[np.uint64], positions: Longs) -> NDArray[np.float64]:
    """Return a number in [0, 1) for each seed and position [K]: SplitMix64. `native/drawing.cpp` has the same."""
    state = _mix(_mix(seeds.astype(np.uint64) + _STEP) + (positions.astype(np.uint64) + np.uint64(1)) * _STEP)
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
