"""Memory for weights that lies within its cache lines as the bytes do in the file.

The kernel's copy out of the page cache is a quarter to a third slower between unequal places of a line, and tensors of
a safetensors file begin wherever its header ends. Who makes the room for weights does so within `AlignedAllocation`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from engine.checkpoints.stored import StoredTensor

LINE_BYTES = 64

_LEAST_BYTES = 1 << 18  # what is smaller is read in no time


def common_alignment(tensors: Iterable[StoredTensor]) -> int:
    """Where within a line most bytes of these lie."""
    places: Counter[int] = Counter()
    for tensor in tensors:
        places[tensor.offset % LINE_BYTES] += tensor.size_bytes
    return max(places, key=lambda place: places[place], default=0)


class AlignedAllocation(TorchFunctionMode):
    """Within it, large tensors that `torch.empty` makes on the CPU begin at byte `place` of a line, if their numbers
    can. They are used like any others: operators ask for no more than the size of a number."""

    def __init__(self, place: int) -> None:
        super().__init__()
        self._place = place

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        made = function(*args, **(kwargs or {}))
        if function is not torch.empty or made.device.type != "cpu" or made.nbytes < _LEAST_BYTES:
            return made
        if self._place % made.itemsize:
            return made
        room = torch.empty(made.nbytes + LINE_BYTES, dtype=torch.uint8)
        first = (self._place - room.data_ptr()) % LINE_BYTES
        return room[first : first + made.nbytes].view(made.dtype).view(made.shape)
