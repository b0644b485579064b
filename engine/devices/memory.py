"""Memory of a device: the size of a model's KV cache, and errors for insufficient memory.

Messages state the bytes needed, the bytes free, and the setting of the node and the flag of `engine serve` to change.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import torch

# Left free beside weights and a step's memory: captured graphs, and gaps between allocations.
_SPARE_BYTES = 1 << 30
_SPARE_RATIO = 0.03
_MAX_FILLS = 2  # largest automatic KV cache, in full contexts of every running sequence; the rest is for cached prompts
_MULTI_RANK = "HEARTH_NODE_TENSOR_PARALLEL (--tensor-parallel)"
_KV = "HEARTH_NODE_KV_BYTES (--kv-memory)"
_ROWS = "HEARTH_NODE_MAX_SEQUENCES (--max-sequences)"
_ALLOCATION = re.compile(r"[Tt]ried to allocate ([0-9.]+ [KMG]iB)")


class PoolSize(NamedTuple):
    """Parameters of the size of one rank's KV cache. With `is_auto`, `wanted_bytes` is an upper limit, 0 for none.
    `slot_bytes` is the size of one token."""

    wanted_bytes: int
    is_auto: bool
    slot_bytes: int
    block_size: int
    max_sequences: int
    max_model_len: int


def num_blocks(size: PoolSize, free_bytes: int, device: torch.device) -> int:
    """Return the number of blocks of a KV cache; `free_bytes` are free beside weights and a step's memory.

    A size that is not automatic is not checked here. Raises MemoryError if not even one block is free for another.
    """
    block_bytes = size.slot_bytes * max(size.block_size, 1)
    if not size.is_auto:
        return size.wanted_bytes // block_bytes
    usable_bytes = int(free_bytes * (1 - _SPARE_RATIO)) - _SPARE_BYTES
    if usable_bytes < block_bytes:
        check_pool(int((block_bytes + _SPARE_BYTES) / (1 - _SPARE_RATIO)) + 1, free_bytes, device)
    wanted_bytes = min(usable_bytes, size.wanted_bytes or usable_bytes)
    most = _MAX_FILLS * size.max_sequences * -(-size.max_model_len // max(size.block_size, 1))
    return min(most, wanted_bytes // block_bytes)


def check_weights(needed_bytes: int, free_bytes: int, what: str, device: torch.device) -> None:
    """Raise MemoryError if weights do not fit. `what` names their format."""
    if needed_bytes > free_bytes:
        raise MemoryError(
            f"out of memory: the weights in {what} need {_shown(needed_bytes)}, and {_shown(free_bytes)} are free on "
            f"{device}; unload other models, publish a quantized variant, or raise {_MULTI_RANK}"
        )


def check_pool(needed_bytes: int, free_bytes: int, device: torch.device) -> None:
    """Raise MemoryError if a KV cache does not fit beside the weights."""
    if needed_bytes > free_bytes:
        raise MemoryError(
            f"out of memory: the KV cache needs {_shown(needed_bytes)}, and {_shown(max(free_bytes, 0))} are free on "
            f"{device} after the weights; lower {_KV} or {_ROWS}"
        )


def describe_shortage(error: torch.OutOfMemoryError, free_bytes: int, device: str) -> str:
    """Return the message for an allocation that failed while a model was loaded."""
    found = _ALLOCATION.search(str(error))
    needed = found[1] if found else "more memory"
    return (
        f"out of memory: an allocation needs {needed}, and {_shown(free_bytes)} are free on {device}; lower {_KV} or "
        f"{_ROWS}"
    )


def _shown(num_bytes: int) -> str:
    return f"{num_bytes} bytes ({num_bytes / (1 << 30):.1f} GiB)"
