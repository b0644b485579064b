"""Timed choice between compiled kernels and torch's: the slower one is not used, and results are stored."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import pytest
import torch

from engine.kernels.cpu import CpuKernels
from engine.kernels.native import choice, stored_choices
from engine.kernels.native.choice import Choices, Contest, choose_native
from engine.kernels.native.chosen import ChosenKernels
from engine.kernels.native.library import find_library
from engine.kernels.native.operators import NativeKernels
from engine.kernels.native.stored_choices import Times, choices_path, is_native_better, is_settled, read_choices
from tests.engine import one_thread  # noqa: F401

QUIET, BUSY = 1.0, 2.0


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_choices, "CACHE", tmp_path)


def wait() -> None:
    time.sleep(0.002)


def slow() -> Sequence[Contest]:
    return [Contest(wait, [int])]


def fast() -> Sequence[Contest]:
    return [Contest(int, [wait, wait])]


def refused() -> Sequence[Contest]:
    raise AssertionError("the stored result is not used")


def measured(monkeypatch: pytest.MonkeyPatch, *, native: float, plain: float, spread: float) -> None:
    """Let every call of both kernels take these microseconds, and `spread` times as many in the first half."""
    turns = count()

    def microseconds(call: object) -> float:
        index = next(turns)
        is_first_half = 2 * (index % (3 * choice._NUM_ROUNDS)) < 3 * choice._NUM_ROUNDS  # `fast` has three calls
        return (native if call is int else plain) * (spread if is_first_half else 1.0)

    monkeypatch.setattr(choice, "_microseconds", microseconds)


def stored(name: str) -> Times:
    return read_choices(choices_path(torch.get_num_threads()))[name]


def test_slow_compiled_kernel_is_not_used() -> None:
    assert not choose_native("attention float32", slow)
    assert choose_native("4-bit small", fast)
    kernels = {name: is_native_better(times) for name, times in stored_choices.stored_choices().items()}
    assert kernels == {"attention float32": False, "4-bit small": True}


def test_choice_of_a_quiet_machine_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    measured(monkeypatch, native=1.0, plain=2.0, spread=QUIET)
    assert choose_native("4-bit small", fast)
    assert choose_native("4-bit small", refused)
    with pytest.raises(AssertionError, match="stored"):
        choose_native("4-bit large", refused)


def test_choice_of_a_busy_machine_is_measured_again_and_the_least_times_count(monkeypatch: pytest.MonkeyPatch) -> None:
    measured(monkeypatch, native=9.0, plain=3.0, spread=BUSY)
    assert not choose_native("4-bit small", fast)
    assert not is_settled(stored("4-bit small"))
    measured(monkeypatch, native=2.0, plain=4.0, spread=QUIET)
    assert choose_native("4-bit small", fast)
    assert stored("4-bit small") == Times([2.0], [3.0], is_quiet=True, num_trials=2)
    assert choose_native("4-bit small", refused)


def test_machine_that_is_always_busy_is_measured_five_times(monkeypatch: pytest.MonkeyPatch) -> None:
    measured(monkeypatch, native=1.0, plain=2.0, spread=BUSY)
    for _ in range(5):
        choose_native("4-bit small", fast)
    assert choose_native("4-bit small", refused)


def test_choice_does_not_change_within_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    choices = Choices()
    measured(monkeypatch, native=1.0, plain=2.0, spread=BUSY)
    assert choices.is_native("4-bit small", fast)
    assert choices.is_native("4-bit small", refused)


def test_unreadable_results_are_measured_again() -> None:
    path = choices_path(torch.get_num_threads())
    for content in ("{", "[]", '{"4-bit small": {"native": [1.0], "torch": [1.0]}}', '{"4-bit small": 3}'):
        path.write_text(content)
        assert choose_native("4-bit small", fast)


def test_missing_folder_disables_storing_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(stored_choices, "CACHE", tmp_path / "missing")
    assert choose_native("4-bit small", fast)
    assert stored_choices.stored_choices() == {}


def test_small_differences_keep_the_compiled_kernel() -> None:
    """The results of compiled kernels do not depend on the batch, so they are preferred."""
    assert is_native_better(Times([10.0, 21.0, 40.0], [10.0, 20.0, 40.0], is_quiet=True))
    assert not is_native_better(Times([10.0, 40.0, 80.0], [10.0, 20.0, 40.0], is_quiet=True))


@pytest.mark.parametrize("is_native", [True, False])
def test_every_kind_of_kernel_follows_its_choice(*, is_native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    library = find_library()
    if library is None:
        pytest.skip("no compiled kernels")
    names: list[str] = []

    def choose(name: str, prepare: object) -> bool:
        assert all(isinstance(contest, Contest) for contest in prepare())
        names.append(name)
        return is_native

    monkeypatch.setattr(choice, "choose_native", choose)
    chosen, expected = ChosenKernels(library, Choices()), NativeKernels(library) if is_native else CpuKernels()
    mine, others = operators_of(chosen), operators_of(expected)
    assert set(names) > {"float32 small", "bfloat16 large", "4-bit small", "small operators"}
    assert set(names) > {"LoRA bfloat16", "attention bfloat16", "attention float32"}
    for own, other in zip(mine, others, strict=True):
        assert type(own) is type(other)
        assert getattr(own, "__qualname__", "") == getattr(other, "__qualname__", "")


def operators_of(kernels: CpuKernels) -> list[object]:
    """Return one operator of each kind."""
    from engine.checkpoints.quantized import quantized
    from engine.kernels.interface import GATED_SILU, AttentionShape, KvPool, LowRankShape

    shape = AttentionShape(2, 1, 16)
    matrix = quantized(torch.full((64, 64), 8, dtype=torch.uint8), 4, torch.ones(64, 2), None, 32, None)
    found: list[object] = [
        kernels.linear(torch.ones(64, 64), None),
        kernels.linear(torch.ones(2048, 1024, dtype=torch.bfloat16), None),
        kernels.rms_norm(torch.ones(64), 1e-6, torch.bfloat16),
        kernels.rotation(2),
        kernels.activation(GATED_SILU),
        kernels.low_rank(LowRankShape(64, 8, ((0, 64),)), torch.bfloat16),
    ]
    for dtype in (torch.float32, torch.bfloat16):
        found.append(kernels.attention(KvPool(torch.zeros(1, 32, shape.kv_width, dtype=dtype), 16), shape))
    if kernels.supports_packed(matrix.form, matrix.shape, torch.bfloat16):
        found.append(kernels.packed_linear(matrix, None, torch.bfloat16))
    return found
