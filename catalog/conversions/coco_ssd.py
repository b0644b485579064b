"""Conversion of the COCO-SSD detector (MobileNetV2, TensorFlow.js graph) to safetensors."""

from __future__ import annotations

from pathlib import Path

from catalog.conversions.tensorflow_js import (
    Arrays,
    add_convolution,
    normalization,
    read_shards,
    save,
)

_BACKBONE = "FeatureExtractor/MobilenetV2/"
_KERNEL, _DEPTHWISE_KERNEL = "/Conv2D/merged_input", "/depthwise_weights"
_ANCHORS = "Postprocessor/ExpandDims"


def convert(sources: Path, model_dir: Path) -> None:
    """Write `model.safetensors` from `model.json` and its shards. Raises PullError, OSError or ValueError."""
    weights = read_shards(sources)
    tensors: Arrays = {"anchors": weights[_ANCHORS][0]}
    for name in weights:
        if name.startswith(_BACKBONE):
            _add_of_backbone(tensors, weights, name)
        elif name.startswith("BoxPredictor"):
            _add_of_predictor(tensors, weights, name)
    save(tensors, model_dir)


def _add_of_backbone(tensors: Arrays, weights: Arrays, name: str) -> None:
    """Add a convolution whose batch normalization TensorFlow has reduced to a factor and a summand."""
    layer = name.removesuffix(_KERNEL).removesuffix(_DEPTHWISE_KERNEL)
    if layer == name:
        return
    kernel, bias = weights[name], weights[f"{layer}/BatchNorm/batchnorm/sub"]
    scale = bias * 0 + 1 if name.endswith(_KERNEL) else weights[f"{layer}/BatchNorm/batchnorm/mul"]
    add_convolution(tensors, layer.removeprefix(_BACKBONE).replace("/", "."), kernel, scale, bias)


def _add_of_predictor(tensors: Arrays, weights: Arrays, name: str) -> None:
    layer, _, kind = name.rpartition("/")
    target = layer.replace("/", ".")
    if kind == "depthwise_weights":
        add_convolution(tensors, target, weights[name], *normalization(weights, f"{layer}/BatchNorm"))
    elif kind == "weights":
        bias = weights[f"{layer}/biases"]
        add_convolution(tensors, target, weights[name], bias * 0 + 1, bias)
