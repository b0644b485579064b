"""Weights of TensorFlow.js models: read shards with their manifest, fold batch normalization into convolutions, and
write safetensors. The names of layers become those of `engine/tasks/one_pass/mobilenet_v2.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import msgspec

from catalog.errors import PullError

Arrays = dict[str, Any]  # name -> numpy array


@dataclass(frozen=True)
class StoredWeight:
    """A weight in the shards. If it is stored as 8-bit integers, its values are `integer * scale + minimum`."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    minimum: float = 0.0
    scale: float | None = None


def read_weights(weights: Iterable[StoredWeight], data: bytes) -> Arrays:
    """Return the weights that follow each other in `data`, as float32. Raises PullError."""
    try:
        import numpy as np
    except ImportError:
        raise PullError("this model is converted with numpy: pip install 'hearth[engine]'") from None
    found: Arrays = {}
    offset = 0
    for weight in weights:
        stored = np.dtype("uint8" if weight.scale is not None else weight.dtype).newbyteorder("<")
        values = np.frombuffer(data, stored, prod(weight.shape), offset).reshape(weight.shape).astype(np.float32)
        found[weight.name] = values if weight.scale is None else values * weight.scale + weight.minimum
        offset += values.size * stored.itemsize
    if offset != len(data):
        raise PullError(f"the weights have {offset} bytes, but their files have {len(data)}")
    return found


class _ManifestEntry(msgspec.Struct):
    name: str
    shape: tuple[int, ...]
    dtype: str


def read_shards(sources: Path) -> Arrays:
    """Return the weights of a graph: `model.json` and its shards. Raises PullError, OSError or ValueError."""
    [group] = json.loads((sources / "model.json").read_text())["weightsManifest"]
    stored = msgspec.convert(group["weights"], list[_ManifestEntry])
    data = b"".join((sources / path).read_bytes() for path in group["paths"])
    return read_weights((StoredWeight(each.name, each.shape, each.dtype) for each in stored), data)


def add_convolution(tensors: Arrays, name: str, kernel: Any, scale: Any, bias: Any) -> None:
    """Add `{name}.weight` and `{name}.bias` in the order of torch. The kernel is [height, width, in, out], or
    [height, width, channels, 1] if each channel has its own filter; `scale` and `bias` have one value per output."""
    is_depthwise = kernel.shape[3] == 1 and kernel.shape[2] > 1
    ordered = kernel.transpose((2, 3, 0, 1) if is_depthwise else (3, 2, 0, 1))
    tensors[f"{name}.weight"] = ordered * scale.reshape(-1, 1, 1, 1)
    tensors[f"{name}.bias"] = bias


def normalization(weights: Arrays, prefix: str) -> tuple[Any, Any]:
    """Return the scale and the bias of a batch normalization."""
    scale = weights[f"{prefix}/gamma"] / (weights[f"{prefix}/moving_variance"] + 1e-3) ** 0.5
    return scale, weights[f"{prefix}/beta"] - weights[f"{prefix}/moving_mean"] * scale


def save(tensors: Arrays, model_dir: Path) -> None:
    """Write `model.safetensors`. Raises PullError."""
    try:
        import numpy as np
        from safetensors.numpy import save_file
    except ImportError:
        raise PullError("this model is converted with safetensors: pip install 'hearth[engine]'") from None
    contiguous = {name: np.ascontiguousarray(values, dtype=np.float32) for name, values in tensors.items()}
    save_file(contiguous, model_dir / "model.safetensors", metadata={"format": "pt"})
