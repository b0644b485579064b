"""Convert a model's folder into another number format, in the layout of compressed-tensors.

Matrices of attention, feed-forward and head are quantized; embeddings, norms, biases, routers and experts stay as
stored, except that 32-bit matrices become bfloat16. A tied head becomes a separate matrix, so that it can use fewer
bits than the embedding. The same folder and recipe give the same bytes.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import torch

from engine.checkpoints import weights
from engine.checkpoints.dense import Dense
from engine.checkpoints.stored import REALS, Files, Source
from engine.models.config import ModelConfig
from engine.models.decoder import Decoder
from engine.models.registry import read_config
from variants.recipe import Recipe, RecipeError
from variants.rounding import FLOAT8, round_by_group, round_by_output, round_to_float8
from variants.tensor_file import TensorFile, tensor_bytes

_LEFT_BEHIND = (".safetensors", ".safetensors.index.json")
_PIECE_ELEMENTS = 1 << 18  # elements of a matrix that are quantized at a time: a thread's part of the CPU cache
_LEVELS_PER_WORD = 8  # 4-bit levels in an int32

OnBytes = Callable[[int, int], None]  # bytes of the base's weights that were read, and their total


@dataclass(frozen=True)
class Written:
    """The content of a written variant. `rounded` and `kept` name matrices; sizes cover all weights on disk."""

    rounded: tuple[str, ...]
    kept: tuple[str, ...]
    base_bytes: int
    variant_bytes: int


@dataclass(frozen=True)
class Plan:
    """The matrices to quantize and to copy, known from headers alone. `head` names a head that was tied."""

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
    def tensors(self) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        """Return type and shape of each tensor of the variant."""
        tensors = {name: (_dtype_of(self.sources[name]), self.sources[name].shape) for name in self.copied}
        for name in self.rounded:
            num_out, num_in = self.source_of(name).shape
            if self.recipe.group_size is None:
                dtype = FLOAT8 if self.recipe.format == "fp8" else torch.int8
                tensors |= {name: (dtype, (num_out, num_in)), f"{name}_scale": (torch.float32, (num_out, 1))}
            else:
                tensors[f"{name}_packed"] = torch.int32, (num_out, num_in // _LEVELS_PER_WORD)
                tensors[f"{name}_scale"] = torch.bfloat16, (num_out, num_in // self.recipe.group_size)
                tensors[f"{name}_shape"] = torch.int64, (2,)
        return tensors

    @property
    def size_bytes(self) -> int:
        """Size of the variant's weights."""
        return sum(tensor_bytes(dtype, shape) for dtype, shape in self.tensors.values())


def plan_variant(model_dir: Path, recipe: Recipe) -> Plan:
    """Plan the variant of a model. Raises RecipeError, and what loading raises: UnsupportedModel, WeightsError."""
    config = read_config(model_dir)
    checkpoint = weights.open_checkpoint(model_dir).without(config.ignored)
    model = Decoder(config, torch.float32, torch.device("meta"))
    names = model.destinations(checkpoint)
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
        outputs, inputs = recipe.unit
        raise RecipeError(
            f"no matrix fits {recipe.format}, which needs multiples of {outputs} outputs, {inputs} inputs"
        )
    copied = tuple(name for name in names if name not in rounded)
    return Plan(recipe, copied, rounded, kept, head if head in rounded else None, embedding, sources)


def write_variant(model_dir: Path, plan: Plan, folder: Path, on_bytes: OnBytes = lambda _done, _total: None) -> Written:
    """Fill the empty folder `folder`, one matrix after the other, in as many threads as torch has.

    Raises OSError, WeightsError, and RecipeError if there is not enough space.
    """
    needed, free = plan.size_bytes, shutil.disk_usage(folder).free
    if needed > free:
        raise RecipeError(f"{folder}: the variant has {needed} bytes, and {free} are free")
    _copy_files(model_dir, folder, plan)
    try:
        with _one_thread_per_operator() as num_threads, ThreadPoolExecutor(num_threads) as pool:
            _write_tensors(plan, folder / "model.safetensors", pool, on_bytes)
    except OSError as error:
        raise RecipeError(f"{folder}: the weights cannot be written: {error.strerror}") from error
    base_bytes = sum(part.size_bytes for source in plan.sources.values() for part in source.parts)
    return Written(plan.rounded, plan.kept, base_bytes, needed)


def _write_tensors(plan: Plan, path: Path, pool: Executor, on_bytes: OnBytes) -> None:
    names = (*plan.copied, *plan.rounded)
    total = sum(part.size_bytes for name in names for part in plan.source_of(name).parts)
    with Files() as files, TensorFile(path, plan.tensors) as file:
        done = 0
        for name in names:
            on_bytes(done, total)
            source = plan.source_of(name)
            size = sum(part.size_bytes for part in source.parts)
            if name not in plan.rounded:
                file.write(name, _read(source, files, _dtype_of(source)))
                done += size
                continue
            weight = _read(source, files, torch.float32)
            step = max(_PIECE_ELEMENTS // weight.shape[1], 1)
            round_piece = partial(_write_rounded, file, name, weight, plan.recipe)
            firsts = range(0, len(weight), step)
            for index, _ in enumerate(pool.map(round_piece, firsts, repeat(step)), 1):
                on_bytes(done + size * index // len(firsts), total)
            done += size
            if plan.recipe.group_size is not None:
                file.write(f"{name}_shape", torch.tensor(weight.shape))
    on_bytes(total, total)


@contextlib.contextmanager
def _one_thread_per_operator() -> Iterator[int]:
    """Yield torch's number of threads and let each operator use one, because threads round different rows.

    The threads of one operator wait for each other, which takes far longer than the work if the cores are busy.
    """
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield num_threads
    finally:
        torch.set_num_threads(num_threads)


def _read(source: Source, files: Files, dtype: torch.dtype) -> torch.Tensor:
    """Return a parameter. Raises WeightsError if it contains NaN or infinity."""
    values = torch.empty(source.shape, dtype=dtype)
    for first, last in source.pieces():
        source.fill(files, values, first, last)
    return values


def _write_rounded(
    file: TensorFile, name: str, weight: torch.Tensor, recipe: Recipe, first: int, num_rows: int
) -> None:
    """Round some rows of a matrix and write their levels and scales."""
    rows = weight[first : first + num_rows]
    if recipe.group_size is None:
        levels, scales = round_to_float8(rows) if recipe.format == "fp8" else round_by_output(rows)
        file.write(name, levels, first)
    else:
        levels, scales = round_by_group(rows, recipe.group_size)
        file.write(f"{name}_packed", _words(levels), first)
    file.write(f"{name}_scale", scales, first)


def _words(levels: torch.Tensor) -> torch.Tensor:
    """uint8 [rows, n] of 4 bits -> int32 [rows, n / 8], the first in the lowest bits."""
    pairs = levels.reshape(len(levels), -1, 2)
    packed = pairs[..., 0] | pairs[..., 1] << 4  # uint8 [rows, n / 2]
    return packed.contiguous().view(torch.int32)


def _fits(name: str, shape: tuple[int, ...], recipe: Recipe) -> bool:
    """Return True if a matrix can be quantized. Raises RecipeError if a requested group size does not divide it."""
    (num_out, num_in), (outputs, inputs) = shape, recipe.unit
    if num_in % inputs and recipe.is_group_size_forced:
        raise RecipeError(f"--group-size: {recipe.group_size} does not divide the {num_in} inputs of {name}")
    return num_out > 0 and num_in > 0 and num_out % outputs == 0 and num_in % inputs == 0


def _tied_head(config: ModelConfig, checkpoint: weights.Checkpoint) -> str | None:
    """Return the name that a separate head would have in this checkpoint."""
    if not config.is_head_tied:
        return None
    untied = Decoder(replace(config, is_head_tied=False), torch.float32, torch.device("meta"))
    untied.destinations(checkpoint)
    return untied.linears[-1].names[0]


def _dtype_of(source: Source) -> torch.dtype:
    """Return the type of a copied parameter: as stored, except that matrices wider than 16 bits become bfloat16."""
    assert isinstance(source, Dense)
    is_wide = len(source.shape) > 1 and source.stored.dtype in ("F32", "F64")
    return torch.bfloat16 if is_wide else REALS[source.stored.dtype]


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
    config["quantization_config"] = _quantization_config(plan)
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", "utf-8")


def _quantization_config(plan: Plan) -> dict[str, Any]:
    """Return the value of `quantization_config` in the format of compressed-tensors."""
    recipe = plan.recipe
    kind = "float" if recipe.format == "fp8" else "int"
    scheme: dict[str, Any] = {"num_bits": recipe.bits, "type": kind, "symmetric": True, "dynamic": False}
    inputs = None
    if recipe.group_size is None:
        scheme["strategy"] = "channel"
        inputs = {"num_bits": 8, "type": kind, "symmetric": True, "dynamic": True, "strategy": "token"}
    else:
        scheme |= {"strategy": "group", "group_size": recipe.group_size}
    group = {"targets": ["Linear"], "weights": scheme, "input_activations": inputs, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "format": f"{kind}-quantized" if recipe.group_size is None else "pack-quantized",
        "config_groups": {"group_0": group},
        "ignore": sorted(name.removesuffix(".weight") for name in plan.kept),
    }
