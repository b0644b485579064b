"""Name, memory, power and temperature of the node's device, for its published status. Without torch.

GPUs are read through NVML (`nvidia-ml-py`, in the extra `engine`), which does not initialize CUDA. Facts that the
machine does not report are "" or 0.
"""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import Any, NamedTuple

from engine.devices.nvml import visible_gpus

logger = logging.getLogger(__name__)

READ_INTERVAL_S = 2.0
_MAX_NAME = 128


class DeviceFacts(NamedTuple):
    """Name and memory of the GPUs together, or of the CPU and its machine."""

    name: str = ""
    memory_bytes: int = 0


class DeviceReading(NamedTuple):
    """Power of all devices in watts, and temperature of the hottest one in degrees Celsius."""

    power_w: float = 0.0
    temperature_c: float = 0.0


class DeviceMonitor:
    """The node's devices. `facts` are read once, `reading` is renewed by `run`. `nvml` is the module `pynvml`."""

    def __init__(self, device: str, nvml: Any = None) -> None:
        self.reading = DeviceReading()
        self._gpus: list[Any] = []
        self._nvml = nvml
        self.facts = _cpu_facts() if device != "cuda" else self._open_gpus()

    async def run(self) -> None:
        """Renew `reading` until cancelled."""
        while self._gpus:
            self.reading = await asyncio.to_thread(self.read)
            await asyncio.sleep(READ_INTERVAL_S)
        await asyncio.Event().wait()

    def read(self) -> DeviceReading:
        """Read power and temperature now. A device that does not report one of them counts as 0."""
        powers = [self._query("nvmlDeviceGetPowerUsage", gpu) / 1000 for gpu in self._gpus]
        temperatures = [self._query("nvmlDeviceGetTemperature", gpu, 0) for gpu in self._gpus]  # 0: the GPU's sensor
        return DeviceReading(round(sum(powers), 1), float(max(temperatures, default=0)))

    def _query(self, function: str, *arguments: object) -> float:
        try:
            return float(getattr(self._nvml, function)(*arguments))
        except self._nvml.NVMLError:
            return 0.0

    def _open_gpus(self) -> DeviceFacts:
        try:
            if self._nvml is None:
                import pynvml

                self._nvml = pynvml
            self._nvml.nvmlInit()
            self._gpus = visible_gpus(self._nvml)
            names = [self._nvml.nvmlDeviceGetName(gpu) for gpu in self._gpus]
            memory_bytes = sum(self._nvml.nvmlDeviceGetMemoryInfo(gpu).total for gpu in self._gpus)
        except ImportError:
            logger.warning("the device's name is unknown: nvidia-ml-py is missing; install hearth[engine]")
            return DeviceFacts()
        except self._nvml.NVMLError as error:
            logger.warning("the device's name is unknown: NVML cannot be used", extra={"reason": str(error)})
            return DeviceFacts()
        name = f"{len(names)} × {names[0]}" if len(names) > 1 else "".join(names)
        return DeviceFacts(name[:_MAX_NAME], memory_bytes)


def _cpu_facts() -> DeviceFacts:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
        return DeviceFacts(name[:_MAX_NAME], os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (OSError, ValueError):
        return DeviceFacts()
