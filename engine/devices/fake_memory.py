"""`engine.devices.virtual_memory.VirtualMemory` on a CPU, for tests without a GPU.

The physical memory is one file. Freed memory keeps its content, as on a device without an operating system between
tenants, and an access to an address that is not mapped ends the process, as on a GPU.
"""

from __future__ import annotations

import ctypes
import mmap
import os

import torch

from engine.devices.virtual_memory import NoDeviceMemory

_MAP_FIXED, _MAP_NORESERVE = 0x10, 0x4000
_RESERVED = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
_READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]


class FakeMemory:
    """See `VirtualMemory`. The device has `capacity` bytes. With `can_pin` False, host memory cannot be pinned."""

    def __init__(self, capacity: int, granule: int = 64 << 10, *, can_pin: bool = True) -> None:
        self.granule, self.can_pin = granule, can_pin
        self.num_pinned = 0  # bytes
        self._fd = os.memfd_create("fake device")
        os.ftruncate(self._fd, capacity)
        self._used = [False] * (capacity // granule)

    def reserve(self, size: int) -> int:
        return self._mmap(0, size, 0, _RESERVED, -1, 0)

    def map(self, address: int, size: int) -> int:
        count = size // self.granule
        for first in range(len(self._used) - count + 1):
            if not any(self._used[first : first + count]):
                self._used[first : first + count] = [True] * count
                self._mmap(address, size, _READ_WRITE, mmap.MAP_SHARED | _MAP_FIXED, self._fd, first * self.granule)
                return first
        raise NoDeviceMemory("out of memory")

    def unmap(self, address: int, size: int, handle: int) -> None:
        count = size // self.granule
        self._used[handle : handle + count] = [False] * count
        self._mmap(address, size, 0, _RESERVED | _MAP_FIXED, -1, 0)

    def view(self, address: int, size: int) -> torch.Tensor:
        return torch.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype=torch.uint8)

    def pin(self, host: torch.Tensor) -> bool:
        self.num_pinned += host.nbytes if self.can_pin else 0
        return self.can_pin

    def synchronize(self) -> None:
        """Return at once: the CPU has finished."""

    def trim(self) -> int:
        return 0

    def free_bytes(self) -> int:
        return self._used.count(False) * self.granule

    def content(self) -> bytes:
        """Return the physical memory, mapped or not."""
        return os.pread(self._fd, len(self._used) * self.granule, 0)

    @staticmethod
    def _mmap(address: int, size: int, protection: int, flags: int, fd: int, offset: int) -> int:
        found = _libc.mmap(address, size, protection, flags, fd, offset)
        if found in (None, ctypes.c_void_p(-1).value):
            raise OSError(ctypes.get_errno(), "mmap")
        return int(found)
