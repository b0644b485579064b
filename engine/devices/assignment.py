"""Device assignment: rank r of a model gets the r-th visible GPU, counted from the one that the setting names.

CUDA_VISIBLE_DEVICES determines which GPUs are visible. Knows nothing of what a device can compute.
"""

from __future__ import annotations

import os

import torch

from engine.devices.faults import DeviceLost
from engine.devices.host_memory import available_bytes

CPU = torch.device("cpu")


def device_of(name: str, rank: int, size: int) -> torch.device:
    """Return the device of rank `rank` of `size`. Raises ValueError, naming the settings, if there are too few.

    To be called in the rank process: it may initialize the CUDA driver, after which a process cannot fork.
    """
    if name == "cpu":
        return CPU
    kind, _, number = name.partition(":")
    if kind != "cuda" or (":" in name and not number.isdecimal()):
        raise ValueError(f"device={name!r}: expected cpu, cuda, or cuda and the number of a GPU, as in cuda:1")
    first, num_devices = int(number or 0), torch.cuda.device_count()
    if first + size > num_devices:
        needed = f"tensor_parallel={size} needs {size} GPU{'s' * (size > 1)} from number {first} on"
        raise ValueError(f"device={name!r}: {needed}; {num_devices} found{_visibility()}")
    return torch.device("cuda", first + rank)


def make_current(device: torch.device) -> None:
    """Make a GPU the current device of this process and create its context. Does nothing for the CPU.

    Raises DeviceLost.
    """
    if device.type != "cuda":
        return
    try:
        torch.cuda.set_device(device)
        torch.empty(1, device=device)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise DeviceLost(f"{device} cannot create a context: {(str(error).splitlines() or [''])[0]}") from error


def free_memory_bytes(device: torch.device) -> int:
    """Return the bytes that this process may still allocate on the device."""
    return available_bytes() if device == CPU else torch.cuda.mem_get_info(device)[0]


def _visibility() -> str:
    """Return a clause that names the variables that may hide GPUs from this process."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return "" if torch.version.cuda else " (this build of torch has no CUDA)"
    slices = "; a process sees at most one slice of a GPU (MIG)" if "MIG-" in visible else ""
    return f" (CUDA_VISIBLE_DEVICES={visible!r}{slices})"
