"""engine/checkpoints/alignment.py: weights begin at the same offset in a cache line as in the file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from engine.checkpoints import weights
from engine.checkpoints.alignment import LINE_BYTES, AlignedAllocation


@pytest.mark.parametrize("place", [0, 8, 40, 63])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_large_tensors_begin_at_the_requested_offset_if_their_type_allows(place: int, dtype: torch.dtype) -> None:
    with AlignedAllocation(place):
        large, small = torch.empty(700, 300, dtype=dtype), torch.empty(7, 3, dtype=dtype)
        nothing = torch.empty(700, 300, dtype=dtype, device="meta")
    wanted = place if place % dtype.itemsize == 0 else 0
    assert large.data_ptr() % LINE_BYTES == wanted
    assert (large.shape, large.dtype, large.is_contiguous()) == ((700, 300), dtype, True)
    assert (small.shape, nothing.device.type) == ((7, 3), "meta")
    assert torch.empty(700, 300, dtype=dtype).data_ptr() % LINE_BYTES == 0
    large.fill_(1)
    assert large.sum(dtype=torch.float32) == 700 * 300


def test_offset_is_the_most_common_one_of_the_file(tmp_path: Path) -> None:
    written = {"odd": torch.ones(3), "weight": torch.randn(600, 500).bfloat16()}
    save_file(written, tmp_path / "model.safetensors")
    checkpoint = weights.open_checkpoint(tmp_path)
    source = checkpoint.find("weight")
    assert source is not None
    assert checkpoint.common_alignment == source.parts[0].offset % LINE_BYTES
    with AlignedAllocation(checkpoint.common_alignment):
        room = {"odd": torch.empty(3), "weight": torch.empty(600, 500, dtype=torch.bfloat16)}
    weights.load(checkpoint, room)
    assert all(torch.equal(room[name], tensor) for name, tensor in written.items())
