"""Upload host arrays to a device: many arrays in one asynchronous copy. On the CPU they stay in place.

Pinned memory that a copy still reads is not reused before the copy is finished: torch's allocator ensures this.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from engine.arrays import ceil_div

_ALIGNED_BYTES = 16  # alignment of each array; kernels are compiled for aligned pointers


class Upload:
    """Uploads to `device`. Arrays of one call have the same type."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._is_pinned = device.type == "cuda" and torch.cuda.is_available()

    def move(self, arrays: Sequence[NDArray[Any]]) -> list[torch.Tensor]:
        """Return tensors of the same shapes and values on the device, aligned to 16 bytes."""
        if self._device.type == "cpu":
            return [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]
        step = _ALIGNED_BYTES // arrays[0].itemsize
        starts = np.cumsum([0, *(ceil_div(array.size, step) * step for array in arrays)]).tolist()
        flat = np.empty(starts[-1], arrays[0].dtype)
        for array, start in zip(arrays, starts, strict=False):
            flat[start : start + array.size] = array.ravel()
        buffer = torch.from_numpy(flat)
        moved = (buffer.pin_memory() if self._is_pinned else buffer).to(self._device, non_blocking=True)
        return [
            moved[start : start + array.size].view(array.shape) for array, start in zip(arrays, starts, strict=False)
        ]
