"""The GPU measurement script runs on a machine without a GPU."""

import pytest
import torch

from bench.device import facts


def test_every_figure_is_positive_and_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(facts, "ROWS", (1, 16))
    monkeypatch.setattr(facts, "start_costs_s", lambda _: {})
    found = facts.gather(torch.device("cpu"), seconds=0.001)
    assert found["copy_gb_s"] > 0
    assert set(found["products_bf16"]) == set(facts.TINY)
    assert all(row["us"] > 0 for weight in found["products_bf16"].values() for row in weight.values())
    assert set(found["upload_gb_s"]) == {"pinned", "pageable"}


@pytest.mark.gpu
def test_gpu_copy_is_faster_than_upload():
    found = facts.gather(torch.device("cuda"), seconds=0.02)
    assert found["copy_gb_s"] > found["upload_gb_s"]["pinned"]
    assert found["graph_330_nodes"]["launch_us"] > 0
