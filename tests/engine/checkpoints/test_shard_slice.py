"""engine/checkpoints/shard_slice.py: slices of parameters in every format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.checkpoints import weights
from engine.checkpoints.quantized import quantized
from engine.checkpoints.shard_slice import ShardDestination, ShardSlice, narrowed
from engine.checkpoints.stored import Files, StoredTensor
from engine.checkpoints.weights import Checkpoint
from tests.engine import one_thread  # noqa: F401
from tests.engine.checkpoints.made import (
    AWQ,
    GPTQ,
    awq_tensors,
    compressed_tensors,
    gptq_tensors,
    random_levels,
    said_by_compressed_tensors,
    save,
)

NAME, OUT, IN = "x.weight", 64, 96


def plain(folder: Path, dtype: torch.dtype = torch.float32, shape: tuple[int, ...] = (OUT, IN)) -> Checkpoint:
    return save(folder, {NAME: torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)}, None)


def in_float8(folder: Path) -> Checkpoint:
    codes = torch.randn(OUT, IN).to(torch.float8_e4m3fn)
    scales = {"x.weight_scale_inv": torch.rand(OUT // 32, IN // 32) + 0.5}
    said = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [32, 32]}
    return save(folder, {NAME: codes, **scales}, said)


KINDS: dict[str, Callable[[Path], Checkpoint]] = {
    "float32": plain,
    "bfloat16": lambda folder: plain(folder, torch.bfloat16),
    "wide rows": lambda folder: plain(folder, torch.float16, (9, 9000)),
    "8-bit floats": in_float8,
    "GPTQ": lambda folder: save(folder, gptq_tensors("x", random_levels(OUT, IN, 32)), GPTQ),
    "AWQ": lambda folder: save(folder, awq_tensors("x", random_levels(OUT, IN, 32)), AWQ),
    "compressed tensors": lambda folder: save(
        folder, compressed_tensors("x", random_levels(OUT, IN, 32)), said_by_compressed_tensors()
    ),
}


def whole(checkpoint: Checkpoint, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    destination = torch.zeros(shape)
    weights.load(checkpoint, {name: destination}, is_whole=False)
    return destination


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dim", [0, 1])
def test_narrowed_source_equals_the_slice_of_the_parameter(kind: str, dim: int, tmp_path: Path) -> None:
    checkpoint = KINDS[kind](tmp_path)
    source = checkpoint.find(NAME)
    assert source is not None
    size = source.shape[dim]
    spans = ((1, size // 3), (size // 2, size))  # not multiples of a group, a word or a block
    indices = torch.cat([torch.arange(*span) for span in spans])
    expected = whole(checkpoint, NAME, source.shape).index_select(dim, indices)
    part = ShardDestination(torch.zeros_like(expected), ShardSlice(dim, spans, size))
    assert part.shape == source.shape
    weights.load(checkpoint, {NAME: part}, is_whole=False)
    assert torch.equal(part.tensor, expected)


def test_mxfp4_can_be_narrowed_to_some_experts(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    tensors = {
        "x_blocks": torch.from_numpy(rng.integers(0, 256, (5, 6, 2, 16)).astype(np.uint8)),
        "x_scales": torch.from_numpy(rng.integers(120, 132, (5, 6, 2)).astype(np.uint8)),
    }
    checkpoint = save(tmp_path, tensors, {"quant_method": "mxfp4"})
    expected = whole(checkpoint, "x", (5, 64, 6))
    for dim, first, last in ((0, 2, 4), (1, 16, 48), (2, 1, 5)):
        part = ShardDestination(
            torch.zeros_like(expected.narrow(dim, first, last - first)), ShardSlice(dim, ((first, last),), 0)
        )
        (pair,) = part.pairs(_source(checkpoint, "x"))
        with Files() as files:
            for piece in pair[0].pieces():
                pair[0].fill(files, pair[1], *piece)
        assert torch.equal(part.tensor, expected.narrow(dim, first, last - first))


def _source(checkpoint: Checkpoint, name: str) -> Any:
    return checkpoint.find(name)


@pytest.mark.parametrize(("dim", "num_bytes"), [(0, 4 * 9000), (1, 9 * 2 * 4500)])
def test_narrowed_source_reads_only_its_own_bytes(
    dim: int, num_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = KINDS["wide rows"](tmp_path)
    read: list[int] = []
    read_into = Files.read_into

    def counted(files: Files, tensor: StoredTensor, first: int, buffer: memoryview) -> None:
        read.append(len(buffer))
        read_into(files, tensor, first, buffer)

    monkeypatch.setattr(Files, "read_into", counted)
    # the compiled reader cannot be observed
    monkeypatch.setattr("engine.checkpoints.stored.find_library", lambda: None)
    shape = (2, 9000) if dim == 0 else (9, 4500)
    last = shape[dim]
    weights.load(
        checkpoint,
        {NAME: ShardDestination(torch.zeros(shape), ShardSlice(dim, ((0, last),), (9, 9000)[dim]))},
        is_whole=False,
    )
    assert sum(read) == num_bytes


def test_slice_of_a_wrong_shape_is_rejected(tmp_path: Path) -> None:
    part = ShardDestination(torch.zeros(10, IN), ShardSlice(0, ((0, 10),), OUT + 1))
    with pytest.raises(weights.WeightsError, match=r"x\.weight has shape \[64, 96\], the config says \[65, 96\]"):
        weights.load(plain(tmp_path), {NAME: part}, is_whole=False)


def test_narrowing_reads_nothing_and_has_the_shape_of_the_slice(tmp_path: Path) -> None:
    for number, (kind, make) in enumerate(KINDS.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        source = _source(make(folder), NAME)
        for dim in (0, 1):
            shape = list(source.shape)
            shape[dim] = 5
            assert narrowed(source, dim, 2, 7).shape == tuple(shape), kind


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(
    "cut",
    [
        ShardSlice(0, ((1, 3), (5, 6)), 6),
        ShardSlice(1, ((32, 96),), 128),
        ShardSlice(1, ((0, 32), (96, 128)), 128),
    ],
)
@pytest.mark.parametrize("group_size", [32, 128])
def test_slice_of_a_packed_matrix_equals_the_slice_of_its_values(bits: int, cut: ShardSlice, group_size: int) -> None:
    generator = torch.Generator().manual_seed(0)
    levels = torch.randint(0, 1 << bits, (6, 128), generator=generator, dtype=torch.uint8)
    scales = torch.rand(6, 128 // group_size, generator=generator)
    for zeros in (None, torch.randint(0, 1 << bits, scales.shape, generator=generator, dtype=torch.uint8)):
        whole = quantized(levels, bits, scales, zeros, group_size, None)
        part = whole.part(cut)
        assert part.shape == ((cut.size, 128) if cut.dim == 0 else (6, cut.size))
        assert torch.equal(part.dequantize(torch.float32), cut.of(whole.dequantize(torch.float32)))
