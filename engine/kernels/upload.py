"""Host arrays to a device: many in one copy that nobody waits for. On the CPU they stay where they are.

Page-locked memory that a copy still reads is not used again before the copy is done: torch's allocator sees to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from engine.arrays import ceil_div

_ALIGNED_BYTES = 16  # where each array begins: kernels are compiled for pointers that do


class Upload:
    """To `device`. Arrays of one call are of one type."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._is_pinned = device.type == "cuda" and torch.cuda.is_available()

    def move(self, arrays: Sequence[NDArray[Any]]) -> list[torch.Tensor]:
        """Tensors of the same shapes and numbers on the device, at multiples of 16 bytes."""
        if self._device.type == "cpu":
            return [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]
        step = _ALIGNED_BYTES // arrays[0].itemsize
        starts = np.cumsum([0, *(ceil_div(array.size, step) * step for array in arrays)]).tolist()
        flat = np.empty(starts[-1], arrays[0].dtype)
        for array, start in zip(arrays, starts, strict=False):
            flat[start : start + array.size] = array.ravel()
        room = torch.from_numpy(flat)
        moved = (room.pin_memory() if self._is_pinned else room).to(self._device, non_blocking=True)
        return [
            moved[start : start + array.size].view(array.shape) for array, start in zip(arrays, starts, strict=False)
        ]
