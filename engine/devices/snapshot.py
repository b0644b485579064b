"""Snapshot: the weights of a model in a memory file, which processes with the same model share.

The first process writes the file, later ones compare its identity with that of their own weights. The file belongs to
the node's front process (`engine/serving/snapshots.py`), so that nothing of it is left when that process ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from engine.devices.arena import ArenaError
from engine.devices.host_memory import available_bytes
from engine.devices.virtual_memory import VirtualMemory

logger = logging.getLogger(__name__)

_END_BYTES = mmap.PAGESIZE  # follow the weights: the identity, or zeros while the file is not complete


@dataclass(frozen=True, eq=False)
class Snapshot:
    """Weights on the host, uint8 [size], in pinned memory if that is possible. `identity` is a digest of them."""

    weights: torch.Tensor
    identity: bytes
    num_bytes: int

    @classmethod
    def take(cls, path: str, weights: torch.Tensor, identity: bytes, memory: VirtualMemory) -> Snapshot:
        """Copy a device's weights, uint8 [size], to the memory file `path`, unless another process has done so.

        Raises ArenaError if the host has too little memory, or if the file has other weights.
        """
        size = weights.nbytes
        num_bytes = size + _END_BYTES
        with Path(path).open("r+b", buffering=0) as file, _locked(file.fileno()):
            if os.fstat(file.fileno()).st_size not in (0, num_bytes):
                raise ArenaError("the snapshot has weights of another size")
            _allocate(file.fileno(), num_bytes)
            mapping = mmap.mmap(file.fileno(), num_bytes)
            host, stored = torch.frombuffer(mapping, dtype=torch.uint8)[:size], mapping[size : size + len(identity)]
            if any(stored) and stored != identity:
                raise ArenaError("the snapshot has other weights")
            if not memory.pin(host):
                logger.warning("memory cannot be pinned; the model will wake slowly", extra={"size_bytes": size})
            if not any(stored):
                host.copy_(weights)
                memory.synchronize()
                mapping[size : size + len(identity)] = identity
        return cls(host, identity, num_bytes)


@contextlib.contextmanager
def _locked(fd: int) -> Iterator[None]:
    """Hold the file's lock. Closing the file would not release it, because a mapping keeps a duplicate of `fd`."""
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)


def _allocate(fd: int, num_bytes: int) -> None:
    """Allocate all pages of a memory file. Without this, a write to a page that cannot be allocated ends the process.

    Raises ArenaError.
    """
    free_bytes = available_bytes() + 512 * os.fstat(fd).st_blocks
    message = f"{num_bytes} bytes of host memory are needed, and {free_bytes} are available"
    if num_bytes > free_bytes:
        raise ArenaError(message)
    try:
        os.posix_fallocate(fd, 0, num_bytes)
    except OSError as error:
        os.ftruncate(fd, 0)
        raise ArenaError(f"{message}: {error.strerror}") from error
