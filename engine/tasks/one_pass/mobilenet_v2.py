"""MobileNetV2 with batch normalization folded into its convolutions, as TensorFlow pads and scales: the backbone, a
single-shot detector and a classifier with dense layers. The weights come from `catalog/conversions/`.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch.nn import functional

from engine.tasks.image_classification import NUM_LABELS, ClassifierInfo
from engine.tasks.object_detection import DetectionItem, DetectorInfo, Found
from engine.tasks.one_pass.image_item import ImageItem, blank_image, pixels_of

Tensors = dict[str, torch.Tensor]

_STRIDES = (1, 2, 1, 2, 1, 1, 2, 1, 1, 1, 1, 1, 1, 2, 1, 1, 1)  # stride of each of the 17 blocks
_MIDDLE_BLOCK = 13  # its expanded input is a feature map of the detector
_EXTRA_LAYERS = (("2_1x1_256", "2_3x3_s2_512"), ("3_1x1_128", "3_3x3_s2_256"), ("4_1x1_128", "4_3x3_s2_256"),
                 ("5_1x1_64", "5_3x3_s2_128"))  # fmt: skip
_DETECTOR_SIDE, _CLASSIFIER_SIDE = 300, 224
_CENTER_SCALE, _SIZE_SCALE = 10, 5
_MAX_OVERLAP = 0.5  # intersection over union of two objects
_MAX_OBJECTS = 100


class Layers:
    """The convolutions of a network by name."""

    def __init__(self, model_dir: Path, device: str) -> None:
        """Raises OSError or ValueError."""
        self.tensors: Tensors = load_file(model_dir / "model.safetensors", device=device)

    def convolve(self, x: torch.Tensor, name: str, stride: int = 1, *, is_clipped: bool = True) -> torch.Tensor:
        """Convolve [N, C, H, W] with TensorFlow's padding "same"; `is_clipped` limits outputs to 0..6."""
        weight = self.tensors[f"{name}.weight"]
        size = weight.shape[-1]
        bottom, right = (
            max((math.ceil(side / stride) - 1) * stride + size - side, 0) for side in (x.shape[2], x.shape[3])
        )
        if size > 1:
            x = functional.pad(x, (right // 2, right - right // 2, bottom // 2, bottom - bottom // 2))
        y = functional.conv2d(x, weight, self.tensors[f"{name}.bias"], stride, groups=x.shape[1] // weight.shape[1])
        return y.clamp_(0, 6) if is_clipped else y

    def backbone(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the feature maps in the middle ([N, 576, H/16, W/16]) and at the end ([N, 1280, H/32, W/32])."""
        x = self.convolve(x, "Conv", 2)
        middle = x
        for number, stride in enumerate(_STRIDES):
            name = f"expanded_conv_{number}" if number else "expanded_conv"
            expanded = self.convolve(x, f"{name}.expand") if number else x
            if number == _MIDDLE_BLOCK:
                middle = expanded
            y = self.convolve(self.convolve(expanded, f"{name}.depthwise", stride), f"{name}.project", is_clipped=False)
            x = x + y if stride == 1 and x.shape == y.shape else y
        return middle, self.convolve(x, "Conv_1")


class SsdMobileNet:
    """A single-shot detector, a `WorkerModel`."""

    item_type = DetectionItem

    def __init__(self, model_dir: Path, device: str) -> None:
        """Raises OSError, ValueError or KeyError."""
        self._layers = Layers(model_dir, device)
        self._device = device
        self._labels = _labels_of(model_dir)
        self.info = DetectorInfo(len(self._labels))

    def warm_up(self) -> None:
        self.run([DetectionItem(blank_image(), 0.5)])

    @torch.inference_mode()
    def run(self, items: list[DetectionItem]) -> list[list[Found]]:
        """Return the objects in each image."""
        pixels = torch.stack([_resized(pixels_of(item.image), _DETECTOR_SIDE) for item in items]).to(self._device)
        scores, boxes = self._predict(pixels * (2 / 255) - 1)
        rows = zip(scores.cpu(), boxes.cpu(), items, strict=True)
        return [self._objects(*row) for row in rows]

    def _predict(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the scores of the classes ([N, anchors, classes]) and the boxes ([N, anchors, 4]: top, left, bottom,
        right)."""
        layers = self._layers
        maps = list(layers.backbone(x))
        for narrow, wide in _EXTRA_LAYERS:
            y = layers.convolve(maps[-1], f"layer_19_1_Conv2d_{narrow}")
            y = layers.convolve(y, f"layer_19_2_Conv2d_{wide}_depthwise", 2)
            maps.append(layers.convolve(y, f"layer_19_2_Conv2d_{wide}"))
        scores = torch.cat([self._head(each, f"BoxPredictor_{n}.ClassPredictor") for n, each in enumerate(maps)], 1)
        codes = torch.cat(
            [self._head(each, f"BoxPredictor_{n}.BoxEncodingPredictor") for n, each in enumerate(maps)], 1
        )
        return scores.sigmoid()[..., 1:], _decoded(codes, layers.tensors["anchors"])  # the first class is background

    def _head(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """Return the predictions of one feature map, [N, anchors, values]."""
        y = self._layers.convolve(self._layers.convolve(x, f"{name}_depthwise"), name, is_clipped=False)
        num_values = 4 if name.endswith("BoxEncodingPredictor") else len(self._labels) + 1
        return y.permute(0, 2, 3, 1).reshape(len(y), -1, num_values)

    def _objects(self, scores: torch.Tensor, boxes: torch.Tensor, item: DetectionItem) -> list[Found]:
        """Return the objects of one image: of boxes that overlap, the one with the highest score."""
        best, classes = scores.max(-1)
        order = [index for index in best.argsort(descending=True).tolist() if best[index] >= item.threshold]
        kept: list[int] = []
        for index in order:
            if len(kept) == _MAX_OBJECTS:
                break
            if not kept or float(_overlaps(boxes[index], boxes[kept]).max()) <= _MAX_OVERLAP:
                kept.append(index)
        found: list[Found] = []
        for index in kept:
            top, left, bottom, right = boxes[index].tolist()
            found.append((self._labels[int(classes[index])], float(best[index]), [left, top, right, bottom]))
        return found


class DenseMobileNet:
    """A classifier with three dense layers after the backbone, a `WorkerModel`."""

    item_type = ImageItem

    def __init__(self, model_dir: Path, device: str) -> None:
        """Raises OSError, ValueError or KeyError."""
        self._layers = Layers(model_dir, device)
        self._device = device
        self._labels = _labels_of(model_dir)
        self.info = ClassifierInfo(len(self._labels))

    def warm_up(self) -> None:
        self.run([ImageItem(blank_image())])

    @torch.inference_mode()
    def run(self, items: list[ImageItem]) -> list[list[tuple[str, float]]]:
        """Return the most likely labels of each image, best first."""
        pixels = [_resized(pixels_of(item.image), _CLASSIFIER_SIDE, is_aligned=True) for item in items]
        _, x = self._layers.backbone(torch.stack(pixels).to(self._device) / 255)
        x = x.mean((2, 3))
        for number in (1, 2, 3):
            tensors = self._layers.tensors
            x = functional.linear(x, tensors[f"dense_{number}.weight"], tensors[f"dense_{number}.bias"])
            x = x.relu() if number < 3 else x.softmax(-1)
        best = x.cpu().topk(min(NUM_LABELS, x.shape[-1]), dim=-1)
        return [
            [(self._labels[number], score) for number, score in zip(*row, strict=True)]
            for row in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]


def _labels_of(model_dir: Path) -> list[str]:
    """Return the classes in the order of the outputs."""
    names: dict[str, str] = json.loads((model_dir / "config.json").read_text())["id2label"]
    return [names[str(number)] for number in range(len(names))]


def _resized(pixels: np.ndarray, side: int, *, is_aligned: bool = False) -> torch.Tensor:
    """Scale [H, W, 3] to [3, side, side] between neighboring pixels, as TensorFlow's `resizeBilinear` without
    half-pixel centers; `is_aligned` puts the corner pixels onto the corners."""
    image = torch.from_numpy(pixels.copy()).permute(2, 0, 1).float()
    if image.shape[1:] == (side, side):
        return image
    for dimension in (1, 2):
        length = image.shape[dimension]
        step = (length - 1) / (side - 1) if is_aligned else length / side
        positions = torch.arange(side, dtype=torch.float64) * step
        below = positions.floor().long().clamp(max=length - 1)
        above = (below + 1).clamp(max=length - 1)
        weight = (positions - below).float().reshape((-1, 1) if dimension == 1 else (-1,))
        image = image.index_select(dimension, below) * (1 - weight) + image.index_select(dimension, above) * weight
    return image


def _decoded(codes: torch.Tensor, anchors: torch.Tensor) -> torch.Tensor:
    """Return boxes from the differences to the anchors; both are top, left, bottom, right, or center and size."""
    sizes = anchors[:, 2:] - anchors[:, :2]
    centers = anchors[:, :2] + sizes / 2
    center = codes[..., :2] / _CENTER_SCALE * sizes + centers
    half = (codes[..., 2:] / _SIZE_SCALE).exp() * sizes / 2
    return torch.cat([center - half, center + half], -1)


def _overlaps(box: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
    """Return the intersection over union of a box with each of the others."""
    corner = torch.maximum(box[:2], boxes[:, :2])
    shared = (torch.minimum(box[2:], boxes[:, 2:]) - corner).clamp(min=0).prod(-1)
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(-1)
    return shared / (areas + (box[2:] - box[:2]).prod(-1) - shared)
