"""Device assignment and the collective backend of a device, tested without a GPU."""

from __future__ import annotations

import pytest
import torch

from engine.devices.assignment import CPU, device_of
from engine.kernels import collectives
from engine.kernels.collectives import backend_of

GPU = torch.device("cuda", 1)


@pytest.mark.parametrize(
    ("name", "rank", "size", "device"),
    [("cpu", 1, 2, CPU), ("cuda", 0, 1, torch.device("cuda", 0)), ("cuda", 1, 2, GPU), ("cuda:1", 0, 1, GPU)],
)
def test_ranks_get_successive_devices(
    name: str, rank: int, size: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert device_of(name, rank, size) == device


@pytest.mark.parametrize(
    ("name", "size", "message"),
    [
        ("cuda", 3, r"device='cuda': tensor_parallel=3 needs 3 GPUs from number 0 on; 2 found \(CUDA_VISIBLE"),
        ("cuda:1", 2, r"device='cuda:1': tensor_parallel=2 needs 2 GPUs from number 1 on; 2 found"),
        ("cuda:2", 1, r"needs 1 GPU from number 2 on; 2 found"),
        ("cuda:", 1, "expected"),
        ("cuda:first", 1, "expected"),
        ("tpu", 1, r"device='tpu': expected cpu, cuda"),
    ],
)
def test_too_few_devices_are_reported_with_the_settings(
    name: str, size: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1,MIG-2")
    with pytest.raises(ValueError, match=message) as refusal:
        device_of(name, 0, size)
    assert "found" not in str(refusal.value) or "a process sees at most one slice of a GPU (MIG)" in str(refusal.value)


def test_collective_backend_matches_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    assert backend_of(CPU) == "gloo"
    monkeypatch.setattr(collectives._c10d, "ProcessGroupNCCL", object, raising=False)
    assert backend_of(GPU) == "nccl"
    monkeypatch.delattr(collectives._c10d, "ProcessGroupNCCL")
    for device in (GPU, torch.device("meta")):
        with pytest.raises(RuntimeError, match="cannot join ranks"):
            backend_of(device)
