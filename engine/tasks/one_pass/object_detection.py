"""Object detectors in their worker process: pixels to labels, scores and edges.

DETR-like models run with `transformers`, single-shot detectors on MobileNetV2 with `mobilenet_v2.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from engine.tasks.object_detection import DetectionItem, DetectorInfo, Found
from engine.tasks.one_pass.image_item import blank_image, pixels_of
from engine.tasks.one_pass.mobilenet_v2 import SsdMobileNet
from engine.tasks.one_pass.transformers_models import load_pretrained, load_processor, read_config

_SSD = "ssd_mobilenet_v2"
_MODEL_TYPES = (
    "conditional_detr", "d_fine", "dab-detr", "deformable_detr", "detr", "rt_detr", "rt_detr_v2", "table-transformer",
    "yolos", _SSD,
)  # fmt: skip


def load(model_dir: Path, device: str) -> DetectionModel | SsdMobileNet:
    """Load the model of a folder. Raises UnsupportedModel, OSError, ValueError or KeyError."""
    config = read_config(model_dir, _MODEL_TYPES, "object detectors")
    return SsdMobileNet(model_dir, device) if config["model_type"] == _SSD else DetectionModel(model_dir, device)


class DetectionModel:
    """A model of `transformers`, a `WorkerModel`."""

    item_type = DetectionItem

    def __init__(self, model_dir: Path, device: str) -> None:
        self._processor = load_processor("AutoImageProcessor", model_dir)
        self._model = load_pretrained("AutoModelForObjectDetection", model_dir, is_complete=True).to(
            torch.device(device)
        )
        self._labels = self._model.config.id2label
        self.info = DetectorInfo(len(self._labels))

    def warm_up(self) -> None:
        self.run([DetectionItem(blank_image(), 0.5)])

    @torch.inference_mode()
    def run(self, items: list[DetectionItem]) -> list[list[Found]]:
        """Return the objects in each image. Images of one shape share batches, because others would need padding."""
        found: list[list[Found]] = [[] for _ in items]
        shapes = [(item.image.height, item.image.width) for item in items]
        for shape in sorted(set(shapes)):
            numbers = [number for number, each in enumerate(shapes) if each == shape]
            for number, objects in zip(numbers, self._detect([items[each] for each in numbers]), strict=True):
                found[number] = objects
        return found

    def _detect(self, items: list[DetectionItem]) -> list[list[Found]]:
        images = [pixels_of(item.image) for item in items]
        inputs = self._processor(images, return_tensors="pt", input_data_format="channels_last")
        outputs = self._model(**inputs.to(self._model.device))
        results = self._processor.post_process_object_detection(
            outputs, threshold=0.0, target_sizes=[(1, 1)] * len(items)
        )
        return [self._named(result, item.threshold) for result, item in zip(results, items, strict=True)]

    def _named(self, result: dict[str, Any], threshold: float) -> list[Found]:
        rows = zip(result["labels"].tolist(), result["scores"].tolist(), result["boxes"].tolist(), strict=True)
        return [(str(self._labels[label]), score, edges) for label, score, edges in rows if score >= threshold]
