"""The GPUs that this process may use, read through NVML (`nvidia-ml-py`). Does not initialize CUDA."""

from __future__ import annotations

import os
from typing import Any


def visible_gpus(nvml: Any) -> list[Any]:
    """Return the handles of the GPUs that CUDA_VISIBLE_DEVICES makes visible, by number or UUID; of all without it.

    `nvml` is the module `pynvml`, after `nvmlInit`. Raises its NVMLError.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    names = [name.strip() for name in visible.split(",") if name.strip()]
    return [
        nvml.nvmlDeviceGetHandleByIndex(int(name)) if name.isdecimal() else nvml.nvmlDeviceGetHandleByUUID(name)
        for name in names
    ]
