"""bench/device/kernel_cases/attention.py on a CPU: the check passes, notices a wrong kernel, and every case runs."""

from __future__ import annotations

import pytest
import torch

from bench.device.kernel_cases import attention
from engine.kernels import torch_attention
from tests.engine import one_thread  # noqa: F401

CPU = torch.device("cpu")


def test_reference_has_no_error_in_any_case() -> None:
    errors = attention.check(CPU)
    assert len(errors) == 2 * len(attention.SMALL_SHAPES) + 1
    assert set(errors.values()) == {0.0}


def test_wrong_or_missing_numbers_are_noticed() -> None:
    found = torch.ones(4)
    assert attention._error(found, found * 1.1) == pytest.approx(1 / 11)
    assert attention._error(found * float("nan"), found) == float("inf")


def test_row_that_depends_on_its_batch_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = torch_attention._attend

    def wrong(queries: torch.Tensor, out: torch.Tensor, *rest: object) -> None:
        right(queries, out, *rest)
        wrong.number += 1
        out += wrong.number

    wrong.number = 0  # type: ignore[attr-defined]
    monkeypatch.setattr(torch_attention, "_attend", wrong)
    assert attention.check(CPU)["decode row alone = in the batch"] == float("inf")


def test_every_case_runs_and_moves_bytes() -> None:
    for name, launch, num_bytes, operations in attention.cases(CPU):
        launch()
        launch()
        assert num_bytes > 0, name
        assert (operations > 0) == (not name.startswith(("split", "norms"))), name
