"""Virtual memory of a device: address ranges, and physical memory that is mapped to them and unmapped again.

`cuda_memory.py` implements it by CUDA's driver, `fake_memory.py` for tests on a CPU. `Region` is a range that is mapped
in chunks. Knows no models.
"""

from __future__ import annotations

from typing import Protocol

import torch

CHUNK_BYTES = 256 << 20  # physical memory is allocated in pieces of this size, because each piece takes several calls


class NoDeviceMemory(Exception):
    """The device has too little physical memory."""


class VirtualMemory(Protocol):
    """Memory of one device. Sizes and addresses are in bytes and multiples of `granule`."""

    granule: int

    def reserve(self, size: int) -> int:
        """Return the address of a new range, to which nothing is mapped."""

    def map(self, address: int, size: int) -> int:
        """Map new physical memory to a part of a range; return its handle. Its content is undefined. Raises
        NoDeviceMemory."""

    def unmap(self, address: int, size: int, handle: int) -> None:
        """Unmap and free exactly what one call of `map` has mapped. The device must have finished all work on it."""

    def view(self, address: int, size: int) -> torch.Tensor:
        """Return a range as uint8 [size]. Its first chunk must be mapped."""

    def pin(self, host: torch.Tensor) -> bool:
        """Lock pages of host memory, so that copies are fast. Return False if that is impossible."""

    def synchronize(self) -> None:
        """Wait until the device has finished all work."""

    def trim(self) -> int:
        """Free memory that torch holds and does not use. Return the bytes that torch still holds."""

    def free_bytes(self) -> int:
        """Return the free physical memory."""


class Region:
    """A reserved range of addresses, mapped from its start in chunks."""

    def __init__(self, memory: VirtualMemory, num_bytes: int) -> None:
        self.size = -(-num_bytes // memory.granule) * memory.granule
        self._memory = memory
        self._address = memory.reserve(self.size)
        self._chunks: list[tuple[int, int, int]] = []  # address, size, handle
        self._num_mapped = 0

    def map(self, num_bytes: int) -> int:
        """Map at least the first `num_bytes`; return how many are mapped. Raises NoDeviceMemory; chunks that were
        mapped stay mapped."""
        while self._num_mapped < num_bytes:
            address, size = self._address + self._num_mapped, min(CHUNK_BYTES, self.size - self._num_mapped)
            self._chunks.append((address, size, self._memory.map(address, size)))
            self._num_mapped += size
        return self._num_mapped

    def unmap(self) -> None:
        """Unmap and free everything. The addresses stay reserved."""
        for chunk in self._chunks:
            self._memory.unmap(*chunk)
        self._chunks, self._num_mapped = [], 0

    def view(self) -> torch.Tensor:
        """Return the range as uint8 [size]. The first chunk must be mapped."""
        return self._memory.view(self._address, self.size)
