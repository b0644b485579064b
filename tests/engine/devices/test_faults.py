"""Faults of a device and shortages of its memory: what is reported, and which setting to change."""

from __future__ import annotations

import logging

import pytest
import torch

from engine.devices.assignment import make_current
from engine.devices.fake import CUDA_ERRORS, NO_CONTEXT, FakeDevice, cuda_error
from engine.devices.faults import DeviceLost, describe_fault, log_faults
from engine.devices.memory import PoolSize, check_pool, check_weights, describe_shortage, num_blocks

GPU = torch.device("cuda", 1)
SIZE = PoolSize(
    wanted_bytes=0, is_auto=True, slot_bytes=1 << 17, block_size=16, max_sequences=256, max_model_len=131_072
)
GIB = 1 << 30


@pytest.mark.parametrize("fault", CUDA_ERRORS)
def test_cuda_error_is_logged_with_device_code_and_step_and_raised(
    fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(torch.AcceleratorError), log_faults("cuda:1", lambda: 41):
        raise cuda_error(fault)
    (record,) = caplog.records
    code, text = CUDA_ERRORS[fault]
    assert (record.levelno, record.message) == (logging.CRITICAL, "device failed")
    assert record.__dict__["device"] == "cuda:1"
    assert record.__dict__["error"] == f"CUDA error {code}: {text}"
    assert record.__dict__["step"] == 41


def test_code_is_found_in_the_text_of_an_error_without_one() -> None:
    error = RuntimeError("CUDA error: an illegal memory access was encountered\nmore")
    assert describe_fault(error) == "CUDA error 700: an illegal memory access was encountered"


def test_errors_of_the_host_are_not_faults_of_a_device(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(RuntimeError), log_faults("cuda:1", lambda: 1):
        raise RuntimeError("the prompt said: 'a secret'")
    assert not caplog.records
    assert describe_fault(ValueError("CUDA error: no")) is None


def test_device_without_a_context_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "set_device", FakeDevice(NO_CONTEXT).create_context)
    with pytest.raises(DeviceLost, match="cuda:1 cannot create a context: CUDA error: no CUDA-capable device"):
        make_current(GPU)


def test_cpu_needs_no_context(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "set_device", FakeDevice(NO_CONTEXT).create_context)
    make_current(torch.device("cpu"))


def test_automatic_kv_cache_takes_what_is_free_but_for_a_reserve() -> None:
    blocks = blocks_in(SIZE, 60 * GIB)
    assert 57 * GIB < blocks * 16 * SIZE.slot_bytes < 59 * GIB
    assert blocks_in(replace_size(wanted_bytes=10 * GIB), 60 * GIB) == 10 * GIB // (16 * SIZE.slot_bytes)
    assert blocks_in(replace_size(wanted_bytes=90 * GIB), 60 * GIB) == blocks


def test_automatic_kv_cache_of_a_small_model_is_limited_to_two_contexts_of_each_sequence() -> None:
    assert blocks_in(replace_size(slot_bytes=1024, max_model_len=2048), 60 * GIB) == 2 * 256 * 128


@pytest.mark.parametrize("free_bytes", [-GIB, 0, GIB])
def test_automatic_kv_cache_without_memory_is_refused(free_bytes: int) -> None:
    with pytest.raises(MemoryError, match="the KV cache needs 1109112347 bytes"):
        blocks_in(SIZE, free_bytes)


def test_configured_kv_cache_is_as_large_as_configured() -> None:
    size = replace_size(is_auto=False, wanted_bytes=GIB)
    assert blocks_in(size, 0) == GIB // (16 * SIZE.slot_bytes)


def test_shortages_state_bytes_needed_bytes_free_and_the_setting() -> None:
    check_weights(GIB, GIB, "torch.bfloat16", GPU)
    with pytest.raises(MemoryError) as raised:
        check_weights(2 * GIB, GIB, "torch.bfloat16", GPU)
    assert str(raised.value) == (
        "out of memory: the weights in torch.bfloat16 need 2147483648 bytes (2.0 GiB), and 1073741824 bytes (1.0 GiB) "
        "are free on cuda:1; unload other models, publish a quantized variant, or raise HEARTH_NODE_TENSOR_PARALLEL "
        "(--tensor-parallel)"
    )
    check_pool(GIB, GIB, GPU)
    with pytest.raises(MemoryError, match=r"the KV cache needs 2147483648 bytes .* lower HEARTH_NODE_KV_BYTES"):
        check_pool(2 * GIB, GIB, GPU)
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1.00 GiB free.")
    assert describe_shortage(error, GIB, "cuda:1") == (
        "out of memory: an allocation needs 2.00 GiB, and 1073741824 bytes (1.0 GiB) are free on cuda:1; lower "
        "HEARTH_NODE_KV_BYTES (--kv-memory) or HEARTH_NODE_MAX_SEQUENCES (--max-sequences)"
    )


def blocks_in(size: PoolSize, free_bytes: int) -> int:
    return num_blocks(size, free_bytes, GPU)


def replace_size(**changes: object) -> PoolSize:
    return SIZE._replace(**changes)  # type: ignore[arg-type]
