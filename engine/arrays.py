"""Array types and index arithmetic shared by the whole engine. Needs NumPy only."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Floats = NDArray[np.float32]

_Number = TypeVar("_Number", int, Ints, Longs)


def ceil_div(dividend: _Number, divisor: int) -> _Number:
    """Return `dividend` / `divisor`, rounded up."""
    return -(-dividend // divisor)


def segment_offsets(lengths: Ints) -> Longs:
    """Return each element's index within its segment: lengths [2, 3] give [0, 1, 0, 1, 2]."""
    ends = np.cumsum(lengths, dtype=np.int64)
    return np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - lengths, lengths)
