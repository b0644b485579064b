"""Timed choice between compiled and torch products: the slower one is not used, and results are stored."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from engine.kernels.interface import Operator
from engine.kernels.native import choice, stored_choices
from tests.engine import one_thread  # noqa: F401


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_choices, "CACHE", tmp_path)


def slow(_weight: torch.Tensor) -> Operator:
    def forward(x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.01)
        return x

    return forward


def fast(_weight: torch.Tensor) -> Operator:
    return lambda x: x


def refused(_weight: torch.Tensor) -> Operator:
    raise AssertionError("the stored result is not used")


def test_slow_compiled_product_is_not_used() -> None:
    assert not choice.choose_native("bfloat16", (64, 64), slow)
    assert choice.choose_native("4-bit", (64, 64), fast)
    assert stored_choices.stored_choices() == {"bfloat16 small": False, "4-bit small": True}


def test_choice_is_stored_by_kind_and_size() -> None:
    assert choice.choose_native("4-bit", (64, 64), fast)
    assert choice.choose_native("4-bit", (128, 128), refused)
    with pytest.raises(AssertionError, match="stored"):
        choice.choose_native("4-bit", (4096, 4096), refused)


def test_unreadable_results_are_measured_again() -> None:
    stored_choices.choices_path(torch.get_num_threads()).write_text("{")
    assert choice.choose_native("4-bit", (64, 64), fast)


def test_missing_folder_disables_storing_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(stored_choices, "CACHE", tmp_path / "missing")
    assert choice.choose_native("4-bit", (64, 64), fast)
    assert stored_choices.stored_choices() == {}


def test_small_differences_keep_the_compiled_product() -> None:
    """The results of compiled products do not depend on the batch, so they are preferred."""
    assert stored_choices.is_native_better({"native": [10.0, 21.0, 40.0], "torch": [10.0, 20.0, 40.0]})
    assert not stored_choices.is_native_better({"native": [10.0, 40.0, 80.0], "torch": [10.0, 20.0, 40.0]})
