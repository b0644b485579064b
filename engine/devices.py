"""Which device each rank of a model has to itself: rank r the r-th that this process may see (CUDA_VISIBLE_DEVICES says
which those are), counted from the one that the setting names. Knows nothing of what a device can compute."""

from __future__ import annotations

import torch

CPU = torch.device("cpu")


def device_of(name: str, rank: int, size: int) -> torch.device:
    """The device of rank `rank` of `size`. Raises ValueError, naming the settings, where there are too few. For the
    rank itself to call: asking may wake the driver, and what has done that cannot fork."""
    if name == "cpu":
        return CPU
    kind, _, number = name.partition(":")
    if kind != "cuda" or (":" in name and not number.isdecimal()):
        raise ValueError(f"device={name!r}: expected cpu, cuda, or cuda and the number of a GPU, as in cuda:1")
    first, num_devices = int(number or 0), torch.cuda.device_count()
    if first + size > num_devices:
        raise ValueError(
            f"device={name!r}: tensor_parallel={size} takes {size} GPUs from number {first} on; {num_devices} found"
        )
    return torch.device("cuda", first + rank)
