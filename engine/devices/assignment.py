"""Which device each rank of a model has to itself: rank r the r-th that this process may see (CUDA_VISIBLE_DEVICES says
which those are), counted from the one that the setting names. Knows nothing of what a device can compute."""

from __future__ import annotations

import os

import torch

from engine.devices.host_memory import available_bytes

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
        wanted = f"tensor_parallel={size} takes {size} GPU{'s' * (size > 1)} from number {first} on"
        raise ValueError(f"device={name!r}: {wanted}; {num_devices} found{_limits_seen()}")
    return torch.device("cuda", first + rank)


def take(device: torch.device) -> None:
    """What this process does on a GPU without saying where, it does on this one. Starts the driver."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def free_memory_bytes(device: torch.device) -> int:
    """Bytes that this process may still take there."""
    return available_bytes() if device == CPU else torch.cuda.mem_get_info(device)[0]


def _limits_seen() -> str:
    """What may keep this process from more GPUs, as a clause."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return "" if torch.version.cuda else " (this build of torch has no CUDA)"
    slices = ", of slices of a GPU (MIG) a process sees one at most" if "MIG-" in visible else ""
    return f" (CUDA_VISIBLE_DEVICES={visible!r}{slices})"
