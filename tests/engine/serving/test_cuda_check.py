"""Checks of a GPU node at startup: each message names the setting and the value found."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest

from engine import __main__ as node
from engine.devices.fake import FakeDriver
from engine.serving import cuda_check
from engine.serving.cuda_check import attention_fault, check_cuda, check_float8
from engine.standalone.process import main as serve
from telemetry.settings import SettingError

SETTING = "HEARTH_NODE_DEVICE=cuda"
COMPILER = {"CC": "/bin/sh"}


def fault(driver: FakeDriver, environ: dict[str, str]) -> str:
    with pytest.raises(SettingError) as raised:
        check_cuda(SETTING, driver, environ)
    return str(raised.value)


@pytest.fixture(autouse=True)
def all_gpus_are_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_gpu_with_driver_and_compiler_is_accepted() -> None:
    check_cuda(SETTING, FakeDriver(), COMPILER)


def test_missing_driver_is_named() -> None:
    message = fault(FakeDriver(is_loaded=False), COMPILER)
    assert message == "HEARTH_NODE_DEVICE=cuda needs an NVIDIA driver (Driver Not Loaded)"


def test_old_gpu_is_named_with_its_compute_capability() -> None:
    message = fault(FakeDriver((7, 5), "Tesla T4"), COMPILER)
    assert message == "HEARTH_NODE_DEVICE=cuda needs compute capability 8.0 (Tesla T4 has 7.5)"


def test_gpu_without_8_bit_floats_is_named() -> None:
    with pytest.raises(SettingError, match=r"HEARTH_NODE_KV_DTYPE=fp8 needs compute capability 8.9 \(A100 has 8.0\)"):
        check_float8("HEARTH_NODE_KV_DTYPE=fp8", FakeDriver((8, 0), "A100"))
    check_float8("HEARTH_NODE_KV_DTYPE=fp8", FakeDriver((8, 9), "L4"))


def test_machine_without_a_gpu_is_named() -> None:
    assert fault(FakeDriver(num_gpus=0), COMPILER).startswith("HEARTH_NODE_DEVICE=cuda needs a GPU")


def test_missing_compiler_is_named_unless_launchers_are_cached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cuda_check, "_COMPILERS", ("no-such-compiler",))
    environ = {"TRITON_CACHE_DIR": str(tmp_path)}
    expected = "HEARTH_NODE_DEVICE=cuda needs a C compiler (install gcc or set CC)"
    assert fault(FakeDriver(), environ) == expected
    assert fault(FakeDriver(), environ | {"CC": "no-cc"}) == f"{expected} (CC='no-cc' is not found)"
    for name in ("cuda_utils.cpython-312.so", "__triton_launcher.cpython-312.so"):
        (tmp_path / name[:4]).mkdir()
        (tmp_path / name[:4] / name).touch()
    check_cuda(SETTING, FakeDriver(), environ)


def test_unknown_or_missing_attention_backend_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found: set[str] = set()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: SimpleNamespace() if name in found else None)
    assert attention_fault("auto") is None
    assert attention_fault("torch") is None
    assert attention_fault("fastest") == "must be one of auto, triton, torch"
    assert attention_fault("triton") == "needs the package triton, which is not installed"
    assert attention_fault("flashinfer") == "needs the package flashinfer-python, which is not installed"
    assert attention_fault("cudnn") == "needs the package nvidia-cudnn-frontend, which is not installed"
    found |= {"triton", "flashinfer"}
    assert attention_fault("triton") is None
    assert (attention_fault("flashinfer") or "").startswith("flashinfer-python is installed, but not supported; use")


def test_node_and_server_exit_with_status_2_and_name_the_problem(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')

    def refuse(setting: str) -> None:
        check_cuda(setting, FakeDriver(is_loaded=False), COMPILER)

    for module in ("engine.__main__", "engine.standalone.process"):
        monkeypatch.setattr(f"{module}.check_cuda", refuse)
    assert serve([str(tmp_path), "--device", "cuda"]) == 2
    assert capsys.readouterr().err == "hearth engine: --device cuda needs an NVIDIA driver (Driver Not Loaded)\n"
    monkeypatch.setattr(node, "read_settings", lambda _: SimpleNamespace(device="cuda"))
    assert node.main([]) == 2
    assert (
        capsys.readouterr().err == "hearth node: HEARTH_NODE_DEVICE=cuda needs an NVIDIA driver (Driver Not Loaded)\n"
    )
