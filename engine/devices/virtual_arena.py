"""`engine.devices.arena.Arena` over virtual memory: two ranges of addresses, for weights and for the KV cache.

While a model sleeps, nothing is mapped to its addresses. Its weights are in a memory file (`snapshot.py`), which is
written once, because weights do not change. All memory is overwritten with zeros before it is freed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch

from engine.devices.arena import ArenaError, PlacedAllocation, SleepSizes
from engine.devices.snapshot import Snapshot
from engine.devices.virtual_memory import NoDeviceMemory, Region, VirtualMemory

_ALIGNMENT_BYTES = 512  # alignment of tensors, as in torch's allocator
_TRIM_BYTES = 1 << 30  # moved tensors after which their old memory is freed
_SUM_WORDS = 32 << 20  # 8-byte words that one sum of a checksum covers


class VirtualArena:
    """See `engine.devices.arena.Arena`."""

    can_sleep = True

    def __init__(self, memory: VirtualMemory) -> None:
        self._memory = memory
        self._weights: Region | None = None
        self._kv: Region | None = None
        self._layout = b""  # offsets and sizes of the weights
        self._snapshot: Snapshot | None = None

    def adopt(self, tensors: Sequence[torch.Tensor]) -> None:
        groups: dict[int, list[torch.Tensor]] = {}  # tensors by the address of the memory that they share
        for tensor in tensors:
            groups.setdefault(tensor.untyped_storage().data_ptr(), []).append(tensor)
        sizes = [group[0].untyped_storage().nbytes() for group in groups.values()]
        offsets = [0]
        for size in sizes:
            offsets.append(offsets[-1] + -(-size // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES)
        self._layout = repr((offsets, sizes)).encode()
        region = self._weights = Region(self._memory, max(offsets[-1], 1))
        num_mapped, num_trimmed = 0, 0
        for group, offset, size in zip(groups.values(), offsets, sizes, strict=False):
            num_mapped = self._map_zeros(region, num_mapped, offset + size)
            _move(group, region.view(), offset)
            if offset - num_trimmed >= _TRIM_BYTES:
                self._memory.trim()
                num_trimmed = offset
        self._map_zeros(region, num_mapped, region.size)
        self._memory.trim()

    def _map_zeros(self, region: Region, num_zeroed: int, num_bytes: int) -> int:
        """Map at least the first bytes of a region, and overwrite new ones with zeros. Return how many are mapped.

        Gaps between weights are zeros, so that replicas of a model have equal memory. Raises MemoryError.
        """
        try:
            num_mapped = region.map(num_bytes)
        except NoDeviceMemory as error:
            free_bytes = self._memory.free_bytes()
            raise MemoryError(f"out of memory: {region.size} bytes are needed, {free_bytes} are free") from error
        if num_mapped > num_zeroed:
            region.view()[num_zeroed:num_mapped].zero_()
        return num_mapped

    def kv_memory(self) -> PlacedAllocation:
        return PlacedAllocation(self._allocate_kv)

    def _allocate_kv(self, num_bytes: int) -> torch.Tensor:
        assert self._kv is None, "a model has one KV cache"
        self._kv = Region(self._memory, num_bytes)
        self._map_zeros(self._kv, 0, self._kv.size)
        return self._kv.view()[:num_bytes]

    @property
    def _regions(self) -> tuple[Region, Region]:
        assert self._weights is not None, "the arena has weights"
        assert self._kv is not None, "the arena has a KV cache"
        return self._weights, self._kv

    def sleep(self, snapshot: str, /) -> SleepSizes:
        weights, kv = self._regions
        self._memory.synchronize()
        if self._snapshot is None:
            view = weights.view()
            self._snapshot = Snapshot.take(snapshot, view, self._identity(view), self._memory)
        for region in (weights, kv):
            region.view().zero_()
        self._memory.synchronize()
        for region in (weights, kv):
            region.unmap()
        return SleepSizes(self._snapshot.num_bytes, self._memory.trim())

    def wake(self) -> int:
        weights, kv = self._regions
        assert self._snapshot is not None, "the arena is asleep"
        self._memory.trim()
        try:
            for region in (weights, kv):
                region.map(region.size)
        except NoDeviceMemory as error:
            for region in (weights, kv):
                region.unmap()
            free_bytes = self._memory.free_bytes()
            message = f"{weights.size + kv.size} bytes of device memory are needed, and {free_bytes} are free"
            raise ArenaError(message) from error
        view = weights.view()
        view.copy_(self._snapshot.weights, non_blocking=True)
        if self._identity(view) != self._snapshot.identity:
            raise RuntimeError("the weights differ from those before the sleep")
        return self._snapshot.num_bytes

    def _identity(self, weights: torch.Tensor) -> bytes:
        """Return a digest of the layout and a checksum of all weights, uint8 [size]. Waits for the device."""
        sums = torch.stack([part.sum() for part in torch.split(weights.view(torch.int64), _SUM_WORDS)])
        return hashlib.blake2b(self._layout + sums.cpu().numpy().tobytes(), digest_size=32).digest()


def _move(group: Sequence[torch.Tensor], target: torch.Tensor, offset: int) -> None:
    """Copy the memory that tensors share to `target`, uint8 [N], at `offset`, and let the tensors use that."""
    storage = group[0].untyped_storage()
    source = torch.empty(0, dtype=torch.uint8, device=target.device).set_(storage)
    target[offset : offset + storage.nbytes()].copy_(source)
    for tensor in group:
        first = target.storage_offset() + offset + tensor.storage_offset() * tensor.itemsize
        tensor.set_(target.untyped_storage(), first // tensor.itemsize, tensor.shape, tensor.stride())
