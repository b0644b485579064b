"""Conversion of TensorFlow.js weights: 8-bit values, folding of batch normalization, damaged files."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch.nn import functional

from catalog.conversions import coco_ssd, nsfw_mobilenet
from catalog.conversions.tensorflow_js import StoredWeight, add_convolution, normalization, read_weights
from catalog.errors import PullError


def test_weights_follow_each_other_and_8_bit_values_are_scaled():
    data = np.array([1.5, -2], "<f4").tobytes() + bytes([0, 10]) + np.array([7], "<i4").tobytes()
    stored = [
        StoredWeight("plain", (2,), "float32"),
        StoredWeight("scaled", (1, 2), "float32", minimum=-1.0, scale=0.5),
        StoredWeight("whole", (), "int32"),
    ]
    found = read_weights(stored, data)
    assert found["plain"].tolist() == [1.5, -2]
    assert found["scaled"].tolist() == [[-1.0, 4.0]]
    assert float(found["whole"]) == 7


def test_shards_of_another_size_than_the_manifest_are_refused():
    with pytest.raises(PullError, match="the weights have 4 bytes, but their files have 5"):
        read_weights([StoredWeight("one", (1,), "float32")], bytes(5))


def test_folded_convolution_equals_convolution_and_normalization():
    generator = np.random.default_rng(0)
    kernel = generator.normal(size=(3, 3, 2, 4)).astype(np.float32)  # height, width, in, out
    weights = {
        f"bn/{name}": generator.uniform(0.5, 2, 4).astype(np.float32)
        for name in ("gamma", "beta", "moving_mean", "moving_variance")
    }
    tensors: dict = {}
    add_convolution(tensors, "layer", kernel, *normalization(weights, "bn"))
    x = torch.randn(1, 2, 5, 5)
    plain = functional.conv2d(x, torch.from_numpy(kernel.transpose(3, 2, 0, 1).copy()))
    expected = functional.batch_norm(
        plain,
        torch.from_numpy(weights["bn/moving_mean"]),
        torch.from_numpy(weights["bn/moving_variance"]),
        torch.from_numpy(weights["bn/gamma"]),
        torch.from_numpy(weights["bn/beta"]),
        eps=1e-3,
    )
    folded = functional.conv2d(x, torch.from_numpy(tensors["layer.weight"]), torch.from_numpy(tensors["layer.bias"]))
    torch.testing.assert_close(folded, expected, rtol=1e-4, atol=1e-4)


def test_detector_keeps_anchors_backbone_and_heads(tmp_path: Path):
    backbone, head = "FeatureExtractor/MobilenetV2/Conv_1", "BoxPredictor_0/ClassPredictor"
    shapes = {
        "Postprocessor/ExpandDims": [1, 2, 4],
        f"{backbone}/Conv2D/merged_input": [1, 1, 2, 3],
        f"{backbone}/BatchNorm/batchnorm/sub": [3],
        f"{head}/weights": [1, 1, 3, 6],
        f"{head}/biases": [6],
    }
    weights = [{"name": name, "shape": shape, "dtype": "float32"} for name, shape in shapes.items()]
    manifest = [{"paths": ["a", "b"], "weights": weights}]
    (tmp_path / "model.json").write_text(json.dumps({"modelTopology": {}, "weightsManifest": manifest}))
    values = np.arange(sum(int(np.prod(shape)) for shape in shapes.values()), dtype="<f4").tobytes()
    (tmp_path / "a").write_bytes(values[:50])
    (tmp_path / "b").write_bytes(values[50:])
    coco_ssd.convert(tmp_path, tmp_path)
    found = {name: each.shape for name, each in load_file(tmp_path / "model.safetensors").items()}
    assert found == {
        "anchors": (2, 4),
        "Conv_1.weight": (3, 2, 1, 1),
        "Conv_1.bias": (3,),
        "BoxPredictor_0.ClassPredictor.weight": (6, 3, 1, 1),
        "BoxPredictor_0.ClassPredictor.bias": (6,),
    }


def test_moderation_model_is_read_from_the_literals_of_its_scripts(tmp_path: Path):
    quantized = 'quantization:{min:-.5,scale:1e-2,dtype:"uint8"}'
    names = {"dense_1/kernel": "40,30", "dense_1/bias": "30"}
    entries = ",".join(f'{{name:"{n}",shape:[{s}],dtype:"float32",{quantized}}}' for n, s in names.items())
    (tmp_path / "model.min.js").write_text(f"!function(){{weights:[{entries}]}}()")
    (tmp_path / "weights.min.js").write_text(f'x.exports="{base64.b64encode(bytes(1230)).decode()}"')
    nsfw_mobilenet.convert(tmp_path, tmp_path)
    found = load_file(tmp_path / "model.safetensors")
    assert found["dense_1.weight"].shape == (30, 40)
    assert found["dense_1.bias"].tolist() == [-0.5] * 30
    (tmp_path / "weights.min.js").write_text("x.exports=1")
    with pytest.raises(PullError, match="does not contain the weights"):
        nsfw_mobilenet.convert(tmp_path, tmp_path)
