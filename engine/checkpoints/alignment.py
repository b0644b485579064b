"""Allocation of weights with the same offset within a cache line as their bytes have in the file.

The kernel copies out of the page cache a quarter to a third slower if the two offsets differ, and the tensors of a
safetensors file begin wherever its header ends. Weights are allocated inside an `AlignedAllocation` context.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from engine.checkpoints.stored import StoredTensor

LINE_BYTES = 64

_MIN_BYTES = 1 << 18  # alignment makes no difference to the load time of smaller tensors


def common_alignment(tensors: Iterable[StoredTensor]) -> int:
    """Return the offset within a cache line at which most bytes of these tensors begin."""
    num_bytes: Counter[int] = Counter()
    for tensor in tensors:
        num_bytes[tensor.offset % LINE_BYTES] += tensor.size_bytes
    return max(num_bytes, key=lambda offset: num_bytes[offset], default=0)


class AlignedAllocation(TorchFunctionMode):
    """Context in which large CPU tensors from `torch.empty` begin at byte `offset` of a cache line.

    Tensors whose element size does not divide `offset` are allocated as usual. Operators need no more alignment than
    the element size.
    """

    def __init__(self, offset: int) -> None:
        super().__init__()
        self._offset = offset

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        tensor = function(*args, **(kwargs or {}))
        if function is not torch.empty or tensor.device.type != "cpu" or tensor.nbytes < _MIN_BYTES:
            return tensor
        if self._offset % tensor.itemsize:
            return tensor
        buffer = torch.empty(tensor.nbytes + LINE_BYTES, dtype=torch.uint8)
        first = (self._offset - buffer.data_ptr()) % LINE_BYTES
        return buffer[first : first + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
