"""variants/tensor_file.py: the same bytes as safetensors' own writer, whatever the order of the writes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from variants.tensor_file import TensorFile


def test_rows_written_in_any_order_give_the_bytes_of_safetensors_own_writer(tmp_path: Path) -> None:
    tensors = {
        "layer.weight": torch.randint(-128, 128, (10, 7), dtype=torch.int8),
        "layer.weight_scale": torch.rand(10, 1),
        "embedding": torch.rand(5, 3).to(torch.bfloat16),
        "head_packed": torch.randint(0, 99, (4, 2), dtype=torch.int32),
        "head_shape": torch.tensor((4, 16)),
        "norm": torch.rand(3, dtype=torch.float16),
        "empty": torch.empty(0, 3),
    }
    save_file(tensors, tmp_path / "expected", {"format": "pt"})
    with TensorFile(
        tmp_path / "written", {name: (each.dtype, tuple(each.shape)) for name, each in tensors.items()}
    ) as file:
        for name, values in reversed(tensors.items()):
            file.write(name, values[2:], 2)
            file.write(name, values[:2])
    assert (tmp_path / "written").read_bytes() == (tmp_path / "expected").read_bytes()
    assert load_file(tmp_path / "written").keys() == tensors.keys()


def test_existing_file_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("other")
    with pytest.raises(FileExistsError):
        TensorFile(tmp_path / "file", {})
    assert (tmp_path / "file").read_text() == "other"
