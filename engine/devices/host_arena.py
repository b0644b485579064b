"""`engine.devices.arena.Arena` on a CPU.

Weights stay where they are, because a sleeping model keeps them in host memory anyway. The pages of the KV cache go
back to the operating system, which returns zeros when they are used again.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence

import torch

from engine.devices.arena import ArenaError, PlacedAllocation, SleepSizes
from engine.devices.host_memory import available_bytes


class HostArena:
    """See `engine.devices.arena.Arena`. `weight_bytes` is the size of the weights."""

    can_sleep = True

    def __init__(self, weight_bytes: int) -> None:
        self._weight_bytes = weight_bytes
        self._kv: list[mmap.mmap] = []

    def adopt(self, tensors: Sequence[torch.Tensor]) -> None:
        """Leave the tensors where they are."""

    def kv_memory(self) -> PlacedAllocation:
        return PlacedAllocation(self._allocate)

    def _allocate(self, num_bytes: int) -> torch.Tensor:
        memory = mmap.mmap(-1, num_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._kv.append(memory)
        return torch.frombuffer(memory, dtype=torch.uint8)

    def sleep(self, _snapshot: str, /) -> SleepSizes:
        for memory in self._kv:
            memory.madvise(mmap.MADV_DONTNEED)
        return SleepSizes(self._weight_bytes, 0)

    def wake(self) -> int:
        needed_bytes, free_bytes = sum(map(len, self._kv)), available_bytes()
        if needed_bytes > free_bytes:
            raise ArenaError(f"the KV cache needs {needed_bytes} bytes, and {free_bytes} are available")
        return 0
