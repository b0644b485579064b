"""Convert a model's folder into another number format, in the layout of compressed-tensors.

Matrices of attention, feed-forward and head are quantized; embeddings, norms, biases, routers and experts stay as
stored, except that 32-bit matrices become bfloat16. A tied head becomes a separate matrix, so that it can use fewer
bits than the embedding. The same folder and recipe give the same bytes. Knows no catalog.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import torch

from engine.checkpoints import weights
from engine.checkpoints.dense import Dense
from engine.checkpoints.stored import REALS, Files, Source
from engine.models.config import ModelConfig
from engine.models.decoder import Decoder
from engine.models.registry import read_config
from variants.recipe import Recipe, RecipeError
from variants.rounding import round_by_group, round_by_output

_WEIGHTS = ".safetensors"
_LEFT_BEHIND = (_WEIGHTS, ".safetensors.index.json")
_PIECE_ELEMENTS = 1 << 22  # elements of a matrix that are quantized at a time
_TYPES = {torch.int64: "I64", torch.int32: "I32", torch.int8: "I8", torch.float32: "F32", torch.bfloat16: "BF16"}
_ITEM_BYTES = {"I64": 8, "I32": 4, "I8": 1, "F64": 8, "F32": 4, "F16": 2, "BF16": 2}

OnMatrix = Callable[[int, int], None]


@dataclass(frozen=True)
class Written:
    """The content of a written variant. `rounded` and `kept` name matrices; sizes cover all weights on disk."""

    rounded: tuple[str, ...]
    kept: tuple[str, ...]
    base_bytes: int
    variant_bytes: int


@dataclass(frozen=True)
class _Part:
    """One tensor of the file to be written."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return _ITEM_BYTES[self.dtype] * torch.Size(self.shape).numel()


@dataclass(frozen=True)
class Plan:
    """The matrices to quantize and to copy, from headers alone. `head` is the name of a head that was tied."""

    recipe: Recipe
    copied: tuple[str, ...]
    rounded: tuple[str, ...]
    kept: tuple[str, ...]
    head: str | None
    embedding: str
    sources: dict[str, Source]

    def source_of(self, name: str) -> Source:
        return self.sources[self.embedding if name == self.head else name]

    @property
    def parts(self) -> list[_Part]:
        """Return every tensor of the variant, wide types first, so that each is aligned to its type."""
        parts = [_Part(name, _dtype_of(self.sources[name]), self.sources[name].shape) for name in self.copied]
        for name in self.rounded:
            num_out, num_in = self.source_of(name).shape
            if self.recipe.group_size is None:
                parts += [_Part(name, "I8", (num_out, num_in)), _Part(f"{name}_scale", "F32", (num_out, 1))]
            else:
                groups = num_in // self.recipe.group_size
                parts += [
                    _Part(f"{name}_packed", "I32", (num_out, num_in // 8)),
                    _Part(f"{name}_scale", "BF16", (num_out, groups)),
                    _Part(f"{name}_shape", "I64", (2,)),
                ]
        return sorted(parts, key=lambda part: (-_ITEM_BYTES[part.dtype], part.name))

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts)


def plan_variant(model_dir: Path, recipe: Recipe) -> Plan:
    """Raises RecipeError, or what loading the model would raise: UnsupportedModel, WeightsError."""
    config = read_config(model_dir)
    checkpoint = weights.open_checkpoint(model_dir).without(config.ignored)
    model = Decoder(config, torch.float32, torch.device("meta"))
    names = model.destinations(checkpoint.entries)
    sources = weights.check(checkpoint, names)
    for source in sources.values():
        if source.is_quantized:
            raise RecipeError(f"{source.name} is {source.kind} already: a variant is made of 16-bit or 32-bit weights")
    head = _tied_head(config, checkpoint)
    candidates = [name for linear in model.linears for name in linear.names] + ([head] if head else [])
    embedding = next(iter(names))  # the first parameter of a decoder
    sizes = {name: (sources[embedding] if name == head else sources[name]).shape for name in candidates}
    rounded = tuple(name for name in candidates if _fits(name, sizes[name], recipe))
    kept = tuple(name for name in candidates if name not in rounded and name != head)
    if not rounded:
        least = "a multiple of 16 outputs and 32 inputs" if recipe.bits == 4 else "outputs and inputs"
        raise RecipeError(f"no matrix fits {recipe.format}, which needs {least}")
    copied = tuple(name for name in names if name not in rounded)
    return Plan(recipe, copied, rounded, kept, head if head in rounded else None, embedding, sources)


def write_variant(model_dir: Path, plan: Plan, folder: Path, on_matrix: OnMatrix = lambda _done, _all: None) -> Written:
    """Fill the empty folder `folder`. Raises OSError, RecipeError if there is not enough space, and WeightsError."""
    needed, free = plan.size_bytes, shutil.disk_usage(folder).free
    if needed > free:
        raise RecipeError(f"{folder}: the variant has {needed} bytes, and {free} are free")
    _copy_files(model_dir, folder, plan)
    parts, offset = {}, 0
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for part in plan.parts:
        parts[part.name] = (part, offset)
        header[part.name] = {
            "dtype": part.dtype,
            "shape": part.shape,
            "data_offsets": (offset, offset + part.size_bytes),
        }
        offset += part.size_bytes
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % 8)
    try:
        with (folder / "model.safetensors").open("wb") as file, Files() as files:
            os.posix_fallocate(file.fileno(), 0, 8 + len(text) + offset)  # fails early if the disk is full
            file.write(len(text).to_bytes(8, "little") + text)
            file.flush()
            output = _Output(file.fileno(), parts, 8 + len(text))
            for done, name in enumerate((*plan.copied, *plan.rounded)):
                on_matrix(done, len(plan.copied) + len(plan.rounded))
                if name in plan.rounded:
                    _round(name, plan, files, output)
                else:
                    _copy(plan.sources[name], files, output)
            os.fsync(file.fileno())
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise RecipeError(f"{folder}: the disk is full; the variant has {needed} bytes") from error
        raise
    base_bytes = sum(part.size_bytes for source in plan.sources.values() for part in source.parts)
    return Written(plan.rounded, plan.kept, base_bytes, needed)


class _Output:
    """The file being written; its tensors accept pieces in any order."""

    def __init__(self, descriptor: int, parts: dict[str, tuple[_Part, int]], data_start: int) -> None:
        self._descriptor, self._parts, self._data_start = descriptor, parts, data_start

    def write(self, name: str, values: torch.Tensor, first_row: int = 0) -> None:
        """Write rows of a tensor starting at `first_row`."""
        part, offset = self._parts[name]
        assert _TYPES[values.dtype] == part.dtype
        row_bytes = part.size_bytes // part.shape[0]
        data = values.contiguous().view(torch.uint8).numpy().data
        self.write_bytes(offset + first_row * row_bytes, data.cast("B"))

    def copy(self, name: str, first_byte: int, data: memoryview) -> None:
        self.write_bytes(self._parts[name][1] + first_byte, data)

    def write_bytes(self, offset: int, data: memoryview) -> None:
        while len(data):
            count = os.pwrite(self._descriptor, data, self._data_start + offset)
            data, offset = data[count:], offset + count


def _round(name: str, plan: Plan, files: Files, output: _Output) -> None:
    source, group_size = plan.source_of(name), plan.recipe.group_size
    num_out, num_in = source.shape
    weight = torch.empty(num_out, num_in)
    for first, last in source.pieces():
        source.fill(files, weight, first, last)
    step = max(_PIECE_ELEMENTS // num_in, 1)
    for first in range(0, num_out, step):
        rows = weight[first : first + step]
        if group_size is None:
            levels, scales = round_by_output(rows)
            output.write(name, levels, first)
        else:
            levels, scales = round_by_group(rows, group_size)
            output.write(f"{name}_packed", _words(levels), first)
        output.write(f"{name}_scale", scales, first)
    if group_size is not None:
        output.write(f"{name}_shape", torch.tensor([num_out, num_in]))


def _copy(source: Source, files: Files, output: _Output) -> None:
    """Copy a tensor byte by byte, and check it for NaN and infinity."""
    values = torch.empty(source.shape, dtype=REALS[_dtype_of(source)])
    for first, last in source.pieces():
        source.fill(files, values, first, last)
    output.copy(source.name, 0, values.reshape(-1).view(torch.uint8).numpy().data)


def _words(levels: torch.Tensor) -> torch.Tensor:
    """uint8 [rows, n] of 4 bits -> int32 [rows, n / 8], the first in the lowest bits."""
    pairs = levels.reshape(len(levels), -1, 2)
    packed = pairs[..., 0] | pairs[..., 1] << 4  # uint8 [rows, n / 2]
    return packed.contiguous().view(torch.int32)


def _fits(name: str, shape: tuple[int, ...], recipe: Recipe) -> bool:
    """Return True if a matrix can be quantized. Raises RecipeError if a requested group size does not divide it."""
    num_out, num_in = shape
    if recipe.group_size is None:
        return num_out > 0 and num_in > 0
    if num_in % recipe.group_size:
        if recipe.is_group_size_forced:
            raise RecipeError(f"--group-size: {recipe.group_size} does not divide the {num_in} inputs of {name}")
        return False
    return num_out % 16 == 0


def _tied_head(config: ModelConfig, checkpoint: weights.Checkpoint) -> str | None:
    """Return the name that a separate head would have in this checkpoint."""
    if not config.is_head_tied:
        return None
    untied = Decoder(replace(config, is_head_tied=False), torch.float32, torch.device("meta"))
    untied.destinations(checkpoint.entries)
    return untied.linears[-1].names[0]


def _dtype_of(source: Source) -> str:
    assert isinstance(source, Dense)
    is_wide = len(source.shape) > 1 and source.stored.dtype in ("F32", "F64")
    return "BF16" if is_wide else source.stored.dtype


def _copy_files(model_dir: Path, folder: Path, plan: Plan) -> None:
    """Copy all files except weights; config.json describes the quantization."""
    for path in sorted(model_dir.rglob("*")):
        name = path.relative_to(model_dir)
        if path.is_file() and not path.name.endswith(_LEFT_BEHIND) and not path.name.startswith("."):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, folder / name)
    config = json.loads((model_dir / "config.json").read_bytes())
    if plan.head is not None:
        config["tie_word_embeddings"] = False
        if isinstance(config.get("text_config"), dict):
            config["text_config"]["tie_word_embeddings"] = False
    for key in ("torch_dtype", "dtype"):
        if config.get(key) == "float32":
            config[key] = "bfloat16"
    config["quantization_config"] = _said(plan)
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", "utf-8")


def _said(plan: Plan) -> dict[str, Any]:
    """Return `quantization_config` in the format of compressed-tensors."""
    recipe = plan.recipe
    scheme: dict[str, Any] = {"num_bits": recipe.bits, "type": "int", "symmetric": True, "dynamic": False}
    inputs = None
    if recipe.group_size is None:
        scheme["strategy"] = "channel"
        inputs = {"num_bits": 8, "type": "int", "symmetric": True, "dynamic": True, "strategy": "token"}
    else:
        scheme |= {"strategy": "group", "group_size": recipe.group_size}
    group = {"targets": ["Linear"], "weights": scheme, "input_activations": inputs, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "format": "int-quantized" if recipe.group_size is None else "pack-quantized",
        "config_groups": {"group_0": group},
        "ignore": sorted(name.removesuffix(".weight") for name in plan.kept),
    }
