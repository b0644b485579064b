"""Name, memory, power and temperature of a node's device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest

from engine.node.device_facts import DeviceFacts, DeviceMonitor, DeviceReading
from engine.node.node import usable_bytes
from engine.node.settings import NodeSettings
from telemetry.settings import read_settings


def two_gpus(init: Callable[[], None] = lambda: None) -> SimpleNamespace:
    """Return an NVML with two GPUs. The second one does not report its power."""

    def power_of(gpu: int) -> int:
        if gpu:
            raise pynvml.NVMLError_NotSupported
        return 412_345

    return SimpleNamespace(
        NVMLError=pynvml.NVMLError,
        nvmlInit=init,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetHandleByUUID=lambda uuid: int(uuid.removeprefix("GPU-")),
        nvmlDeviceGetName=lambda _gpu: "NVIDIA H200",
        nvmlDeviceGetMemoryInfo=lambda _gpu: SimpleNamespace(total=141 << 30),
        nvmlDeviceGetPowerUsage=power_of,
        nvmlDeviceGetTemperature=lambda gpu, _sensor: 61 + gpu,
    )


def test_cpu_node_knows_the_memory_of_its_machine() -> None:
    monitor = DeviceMonitor("cpu")
    assert monitor.facts.memory_bytes > 1 << 28
    assert monitor.read() == DeviceReading()


def test_gpus_are_counted_and_their_memory_and_power_are_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monitor = DeviceMonitor("cuda", two_gpus())
    assert monitor.facts == DeviceFacts("2 × NVIDIA H200", 282 << 30)
    assert monitor.read() == DeviceReading(412.3, 62.0)


@pytest.mark.parametrize("visible", ["1", "GPU-1"])
def test_only_visible_gpus_count(visible: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monitor = DeviceMonitor("cuda", two_gpus())
    assert monitor.facts == DeviceFacts("NVIDIA H200", 141 << 30)
    assert monitor.read() == DeviceReading(0.0, 62.0)


def test_node_without_a_driver_reports_no_device_facts() -> None:
    def no_driver() -> None:
        raise pynvml.NVMLError_LibraryNotFound

    monitor = DeviceMonitor("cuda", two_gpus(no_driver))
    assert (monitor.facts, monitor.read()) == (DeviceFacts(), DeviceReading())


def test_nodes_that_share_a_gpu_share_its_memory(short_tmp_path: Path) -> None:
    required = {
        "REDIS_URL": "unix:///nowhere", "OBJECTS_URL": "file:///nowhere", "HEARTH_NODE_ID": "n1",
        "HEARTH_NODE_LISTEN": f"unix://{short_tmp_path}/node.sock", "HEARTH_SERVICE_RING": "ring.json",
        "HEARTH_SERVICE_KEYS": "keys", "HEARTH_NODE_DEVICE": "cuda",
    }  # fmt: skip
    alone = read_settings(NodeSettings, required)
    of_four = read_settings(NodeSettings, {**required, "HEARTH_NODE_MEMORY_SHARE": "0.25"})
    assert usable_bytes(of_four, 80 << 30) == usable_bytes(alone, 80 << 30) // 4 == (18 << 30)
