"""Parse a checkpoint's quantization config and find the stored tensors that make up a parameter.

The config is `quantization_config` in config.json, or a separate file written by older GPTQ and AWQ tools. Parts are
found by their names, and the bits and groups of the config must fit their shapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.arrays import ceil_div
from engine.checkpoints.dense import Dense, ScaledFloat8
from engine.checkpoints.mxfp4 import Mxfp4
from engine.checkpoints.packed_integers import PackedByInput, PackedByOutput
from engine.checkpoints.stored import Files, Source, StoredTensor, WeightsError

METHODS = ("gptq", "awq", "fp8", "fbgemm_fp8", "compressed-tensors", "mxfp4")
_WHERE = "quantization_config"
_FORMATS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "mixed-precision", "dense")
_FLOAT8 = ("F8_E4M3", "F8_E5M2")

# Tensors for quantized activations, which the engine does not use, or that repeat what shapes say.
_UNUSED_ENDINGS = (
    "input_scale", "input_scale_ub", "output_scale", "k_scale", "v_scale", "q_scale", "input_zero_point",
    "weight_shape", "k_zero_point", "v_zero_point",
)  # fmt: skip


@dataclass(frozen=True)
class Quantization:
    """The quantization of a checkpoint.

    `levels` has (bits, group size or 0 for a whole row) for every group of modules; `block` is the block size of 8-bit
    float scales.
    """

    method: str
    levels: tuple[tuple[int, int], ...] = ()
    block: tuple[int, int] | None = None
    zero_shift: int = 0  # GPTQ before version 2 stores zeros minus one
    is_input_quantized: bool = False  # 8-bit integer weights are meant for 8-bit inputs
    is_reordered: bool = False  # GPTQ orders inputs by the size of their activations

    def find(self, name: str, stored: Mapping[str, StoredTensor]) -> Source | None:
        """Return the parameter called `name`, or None if it is not stored. Raises WeightsError."""
        whole = stored.get(name)
        if whole is not None:
            return self._whole(name, whole, stored)
        if self.method == "mxfp4" and f"{name}_blocks" in stored:
            return Mxfp4(name, stored[f"{name}_blocks"], _part(stored, f"{name}_scales"))
        base = name.removesuffix(".weight")
        if self.method in ("gptq", "awq") and f"{base}.qweight" in stored and base != name:
            return self._by_input(name, base, stored)
        if self.method == "compressed-tensors" and f"{name}_packed" in stored:
            return self._by_output(name, stored[f"{name}_packed"], stored)
        return None

    def _whole(self, name: str, whole: StoredTensor, stored: Mapping[str, StoredTensor]) -> Source:
        scale = stored.get(f"{name}_scale_inv") or stored.get(f"{name}_scale")
        if whole.dtype in _FLOAT8 and scale is not None:
            return ScaledFloat8(name, whole, scale, self.block)
        if whole.dtype in _FLOAT8 and self.method != "none":
            raise WeightsError(f"{name} is {whole.dtype}, but its scale ({name}_scale or {name}_scale_inv) is missing")
        if whole.dtype == "I8" and self.method == "compressed-tensors":
            return self._by_output(name, whole, stored)
        return Dense(name, whole)

    def _by_input(self, name: str, base: str, stored: Mapping[str, StoredTensor]) -> Source:
        words, order = stored[f"{base}.qweight"], stored.get(f"{base}.g_idx")
        scales, zeros = _part(stored, f"{base}.scales"), _part(stored, f"{base}.qzeros")
        if len(words.shape) != 2 or len(scales.shape) != 2:
            raise WeightsError(f"{words.name} has shape {list(words.shape)}, {scales.name} {list(scales.shape)}")
        if self.is_reordered and order is None:
            raise WeightsError(f"tensor {base}.g_idx is missing, but desc_act is true")
        if self.method == "awq":
            bits, group_size = self._levels_for(name, words.shape[0], words.shape[1], scales.shape[1], scales.shape[0])
            return PackedByInput(name, "AWQ", bits, words, scales, zeros, None, group_size, 0)
        num_in = order.shape[0] if order is not None and order.shape else None
        bits, group_size = self._levels_for(name, num_in, words.shape[0], num_in, scales.shape[0])
        return PackedByInput(name, "GPTQ", bits, words, scales, zeros, order, group_size, self.zero_shift)

    def _by_output(self, name: str, words: StoredTensor, stored: Mapping[str, StoredTensor]) -> Source:
        scales = _part(stored, f"{name}_scale")
        zeros, order = stored.get(f"{name}_zero_point"), stored.get(f"{name}_g_idx")
        if len(words.shape) != 2:
            raise WeightsError(f"{words.name} has shape {list(words.shape)}")
        num_groups = scales.shape[1] if len(scales.shape) == 2 else 1
        if words.dtype == "I8":
            num_in = words.shape[1]
            group_size = 0 if num_groups == 1 else ceil_div(num_in, num_groups)
            return PackedByOutput(name, 8, words, scales, zeros, order, num_in, group_size, self.is_input_quantized)
        width = _stored_width(stored.get(f"{name}_shape"))
        bits, group_size = self._levels_for(name, width, words.shape[1], width, num_groups)
        num_in = words.shape[1] * 32 // bits if width is None else width
        return PackedByOutput(name, bits, words, scales, zeros, order, num_in, group_size)

    def _levels_for(
        self, name: str, num_in: int | None, num_words: int, num_levels: int | None, num_groups: int
    ) -> tuple[int, int]:
        """Return the bits and group size from the config that fit these shapes.

        `num_levels` levels are packed in `num_words` words; None means as many as the words hold.
        """
        for bits, group_size in self.levels:
            levels = num_words * 32 // bits if num_levels is None else num_levels
            inputs = levels if num_in is None else num_in
            groups = ceil_div(inputs, group_size) if group_size else 1
            if ceil_div(levels * bits, 32) == num_words and groups == num_groups:
                return bits, group_size
        expected = " or ".join(f"{bits} bits in groups of {size or 'a row'}" for bits, size in self.levels)
        raise WeightsError(f"{name}: {num_words} words in {num_groups} groups do not fit {_WHERE} ({expected})")


NOT_QUANTIZED = Quantization("none")


def is_unused(name: str) -> bool:
    """Return True if a stored tensor is for quantized activations, which the engine does not use."""
    return name.rpartition(".")[2] in _UNUSED_ENDINGS


def parse_quantization(config: Any) -> Quantization:
    """Parse the JSON of `quantization_config`. Raises WeightsError naming a value that is not supported."""
    if config is None or config == {}:
        return NOT_QUANTIZED
    if not isinstance(config, dict):
        raise WeightsError(f"{_WHERE} is not an object")
    method = config.get("quant_method")
    if method == "modelopt" and "FP8" in str(config.get("quant_algo")):
        method = "fp8"
    if method not in METHODS:
        raise WeightsError(
            f"{_WHERE}: quant_method={str(method)[:50]!r} is not supported (supported: {', '.join(METHODS)})"
        )
    if method == "gptq":
        return _gptq(config)
    if method == "awq":
        if str(config.get("version", "gemm")).lower() != "gemm":
            raise WeightsError(f"{_WHERE}: version={str(config['version'])[:50]!r} is not supported (supported: gemm)")
        bits = _whole(config, "bits", (4,), config.get("w_bit"))
        return Quantization("awq", ((bits, _group_size(config, "group_size", config.get("q_group_size"))),))
    if method == "compressed-tensors":
        return _compressed_tensors(config)
    return Quantization(method, block=_block(config.get("weight_block_size")))


def _gptq(config: Mapping[str, Any]) -> Quantization:
    version = "gptq" if config.get("checkpoint_format") is None else config["checkpoint_format"]
    if version not in ("gptq", "gptq_v2"):
        raise WeightsError(
            f"{_WHERE}: checkpoint_format={str(version)[:50]!r} is not supported (supported: gptq, gptq_v2)"
        )
    is_reordered = False if config.get("desc_act") is None else config["desc_act"]
    if not isinstance(is_reordered, bool):
        raise WeightsError(f"{_WHERE}: desc_act={str(is_reordered)[:50]!r}: expected true or false")
    levels = [(_whole(config, "bits", (4, 8)), _group_size(config, "group_size"))]
    overrides = config.get("dynamic") or {}  # other bits or groups for modules by name pattern
    if not isinstance(overrides, dict):
        raise WeightsError(f"{_WHERE}: dynamic is not an object")
    for override in overrides.values():
        if isinstance(override, dict) and override:
            merged = {**config, **override}
            levels.append((_whole(merged, "bits", (4, 8)), _group_size(merged, "group_size")))
    zero_shift = 1 if version == "gptq" else 0
    return Quantization("gptq", tuple(dict.fromkeys(levels)), zero_shift=zero_shift, is_reordered=is_reordered)


def _compressed_tensors(config: Mapping[str, Any]) -> Quantization:
    groups = config.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise WeightsError(f"{_WHERE}: config_groups is missing")
    levels, block, is_input_quantized = [], None, False
    for group in groups.values():
        weights = group.get("weights") if isinstance(group, dict) else None
        if not isinstance(weights, dict):
            raise WeightsError(f"{_WHERE}: config_groups: weights is missing")
        form = group.get("format") or config.get("format") or "dense"
        if form not in _FORMATS:
            raise WeightsError(
                f"{_WHERE}: format={str(form)[:50]!r} is not supported (supported: {', '.join(_FORMATS)})"
            )
        if weights.get("type") == "float":
            _whole(weights, "num_bits", (8,))
            block = _block(weights.get("block_structure")) or block
            continue
        bits, strategy = _whole(weights, "num_bits", (4, 8)), weights.get("strategy")
        inputs = group.get("input_activations")
        is_input_quantized |= isinstance(inputs, dict) and (inputs.get("type"), inputs.get("num_bits")) == ("int", 8)
        levels.append((bits, _group_size(weights, "group_size") if strategy == "group" else 0))
    known = tuple(dict.fromkeys(levels))
    return Quantization("compressed-tensors", known, block, is_input_quantized=is_input_quantized)


def _whole(config: Mapping[str, Any], key: str, allowed: tuple[int, ...], default: Any = None) -> int:
    value = config.get(key, default)
    if type(value) is not int or value not in allowed:
        known = ", ".join(str(each) for each in allowed)
        raise WeightsError(f"{_WHERE}: {key}={str(value)[:50]!r} is not supported (supported: {known})")
    return value


def _group_size(config: Mapping[str, Any], key: str, default: Any = None) -> int:
    """Return how many inputs share a scale, 0 for a whole row."""
    value = config.get(key, default)
    if value in (-1, None):
        return 0
    if type(value) is not int or not 1 <= value <= 1 << 20:
        raise WeightsError(f"{_WHERE}: {key}={str(value)[:50]!r}: expected -1 or a positive integer")
    return value


def _block(value: Any) -> tuple[int, int] | None:
    if value is None:
        return None
    is_sound = isinstance(value, list) and len(value) == 2 and all(type(size) is int and size > 0 for size in value)
    if not is_sound:
        raise WeightsError(f"{_WHERE}: block size {str(value)[:50]!r}: expected two positive integers")
    return value[0], value[1]


def _part(stored: Mapping[str, StoredTensor], name: str) -> StoredTensor:
    if name not in stored:
        raise WeightsError(f"tensor {name} is missing")
    return stored[name]


def _stored_width(shape: StoredTensor | None) -> int | None:
    """Read the number of inputs from a `weight_shape` tensor."""
    if shape is None:
        return None
    if shape.dtype not in ("I64", "I32") or shape.shape != (2,):
        raise WeightsError(f"{shape.name}: {shape.dtype} of shape {list(shape.shape)}")
    with Files() as files:
        width = int(files.read_rows(shape)[1])
    if not 1 <= width <= 1 << 30:
        raise WeightsError(f"{shape.name} gives {width} inputs")
    return width
