"""A device that fails as a GPU can, for tests without one. Runs everything on the CPU, like `recorded.py`.

The errors are those of torch: out of memory when a step is launched, CUDA errors 214, 700 and 719 when its results are
waited for, a context that cannot be created. `FakeDriver` replaces the module `pynvml`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from engine.devices.recorded import RecordedDevice, RecordedEvent

OUT_OF_MEMORY = "out of memory"
NO_CONTEXT = "no context"
CUDA_ERRORS = {
    "ECC error": (214, "uncorrectable ECC error encountered"),
    "illegal access": (700, "an illegal memory access was encountered"),
    "launch failure": (719, "unspecified launch failure"),
}


def cuda_error(fault: str) -> torch.AcceleratorError:
    """Return the exception that torch raises for one of CUDA_ERRORS."""
    code, text = CUDA_ERRORS[fault]
    error: Any = torch.AcceleratorError(f"CUDA error: {text}\nCUDA kernel errors might be reported at some other call.")
    error.error_code = code
    return error  # type: ignore[no-any-return]


class FakeDevice(RecordedDevice):
    """See `engine.devices.device.Device`. The device has `fault` from the step `at_step` on, counted from 1."""

    def __init__(self, fault: str = "", at_step: int = 1) -> None:
        super().__init__()
        self.fault, self.at_step = fault, at_step
        self.num_waits = 0

    @property
    def is_failing(self) -> bool:
        return self.num_waits + 1 >= self.at_step

    def event(self) -> FakeEvent:
        return FakeEvent(self)

    def create_context(self, *_: object) -> None:
        """Fail as the first use of a device does that has fallen off the bus, if that is the fault."""
        if self.fault == NO_CONTEXT:
            raise torch.AcceleratorError("CUDA error: no CUDA-capable device is detected")


class FakeEvent(RecordedEvent):
    """See `engine.devices.device.Event`."""

    def __init__(self, device: FakeDevice) -> None:
        super().__init__()
        self._device = device

    def record(self) -> None:
        if self._device.fault == OUT_OF_MEMORY and self._device.is_failing:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1.00 GiB free.")
        super().record()

    def wait(self) -> None:
        if self._device.fault in CUDA_ERRORS and self._device.is_failing:
            raise cuda_error(self._device.fault)
        self._device.num_waits += 1
        super().wait()


class FakeDriverError(Exception):
    """Stands for `pynvml.NVMLError`."""


@dataclass
class FakeDriver:
    """Stands for the module `pynvml` on a machine with one GPU."""

    capability: tuple[int, int] = (9, 0)
    name: str = "NVIDIA H200"
    is_loaded: bool = True
    num_gpus: int = 1
    NVMLError: Any = FakeDriverError

    def nvmlInit(self) -> None:  # noqa: N802 - pynvml's names
        if not self.is_loaded:
            raise FakeDriverError("Driver Not Loaded")

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return self.num_gpus

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetName(self, _gpu: int) -> str:  # noqa: N802
        return self.name

    def nvmlDeviceGetCudaComputeCapability(self, _gpu: int) -> tuple[int, int]:  # noqa: N802
        return self.capability
