"""Image classifiers in their worker process: pixels to classes with probabilities, with `transformers` or with
`mobilenet_v2.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from engine.tasks.image_classification import NUM_LABELS, ClassifierInfo
from engine.tasks.one_pass.image_item import ImageItem, blank_image, pixels_of
from engine.tasks.one_pass.mobilenet_v2 import DenseMobileNet
from engine.tasks.one_pass.transformers_models import load_pretrained, load_processor, read_config

_DENSE = "mobilenet_v2_dense"
_MODEL_TYPES = (
    "beit", "bit", "convnext", "convnextv2", "deit", "dinov2", "dinov2_with_registers", "efficientnet", "focalnet",
    "levit", "mobilenet_v1", "mobilenet_v2", "mobilevit", "mobilevitv2", "poolformer", "pvt", "pvt_v2", "regnet",
    "resnet", "siglip", "swiftformer", "swin", "swinv2", "vit", "vit_msn", _DENSE,
)  # fmt: skip

_CPU_BATCH = 1  # the activations of more images do not fit into a processor's caches, so batches are slower


def load(model_dir: Path, device: str) -> ClassificationModel | DenseMobileNet:
    """Load the model of a folder. Raises UnsupportedModel, OSError, ValueError or KeyError."""
    config = read_config(model_dir, _MODEL_TYPES, "image classifiers")
    if config["model_type"] == _DENSE:
        return DenseMobileNet(model_dir, device)
    return ClassificationModel(model_dir, device, config)


class ClassificationModel:
    """One loaded model, a `WorkerModel`."""

    item_type = ImageItem

    def __init__(self, model_dir: Path, device: str, config: dict[str, Any]) -> None:
        self._processor = load_processor("AutoImageProcessor", model_dir)
        model = load_pretrained("AutoModelForImageClassification", model_dir, is_complete=True)
        self._model = model.to(torch.device(device), memory_format=torch.channels_last)
        self._is_on_device = device != "cpu"
        self._labels = self._model.config.id2label
        self._is_multi_label = config.get("problem_type") == "multi_label_classification"
        self.info = ClassifierInfo(len(self._labels))

    def warm_up(self) -> None:
        self.run([ImageItem(blank_image())])

    def run(self, items: list[ImageItem]) -> list[list[tuple[str, float]]]:
        """Return the most likely labels of each image, best first."""
        size = len(items) if self._is_on_device else _CPU_BATCH
        return [
            labels for first in range(0, len(items), size) for labels in self._classify(items[first : first + size])
        ]

    @torch.inference_mode()
    def _classify(self, items: list[ImageItem]) -> list[list[tuple[str, float]]]:
        images = [pixels_of(item.image) for item in items]
        inputs = self._processor(images, return_tensors="pt", input_data_format="channels_last")
        pixels = inputs["pixel_values"].to(self._model.device).contiguous(memory_format=torch.channels_last)
        logits = self._model(pixel_values=pixels).logits.float().cpu()
        scores = logits.sigmoid() if self._is_multi_label else logits.softmax(-1)
        best = scores.topk(min(NUM_LABELS, scores.shape[-1]), dim=-1)
        return [self._named(*row) for row in zip(best.indices.tolist(), best.values.tolist(), strict=True)]

    def _named(self, classes: list[int], scores: list[float]) -> list[tuple[str, Any]]:
        return [(str(self._labels[number]), score) for number, score in zip(classes, scores, strict=True)]
