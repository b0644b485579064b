"""Object detection: one item per image; the worker (`one_pass/object_detection.py`) finds the objects."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from engine.protocol.events import Result, Usage
from engine.protocol.images import Image
from engine.protocol.tasks.object_detection import Box, DetectedObject, DetectedObjects, ObjectDetection
from engine.tasks.loading import LoadRequest
from engine.tasks.one_pass.host import OnePassHost
from engine.tasks.one_pass.task_model import OnePassModel
from engine.tasks.work import ModelDescription

_MAX_BATCH = 4

Found = tuple[str, float, list[float]]  # label, score, and the edges (left, top, right, bottom) as fractions


class DetectionItem(Struct, frozen=True, array_like=True):
    """An image, and the lowest score of an object."""

    image: Image
    threshold: float

    @property
    def cost(self) -> int:
        return 1


class DetectorInfo(Struct, frozen=True):
    """The number of classes of the model."""

    num_classes: int


async def load(request: LoadRequest) -> ObjectDetector:
    """Load an object detector. Raises ModelLoadError."""
    return ObjectDetector(await OnePassHost.start(request, "engine.tasks.one_pass.object_detection:load", _MAX_BATCH))


class ObjectDetector(OnePassModel[ObjectDetection]):
    """One object detector of this node."""

    def describe(self) -> ModelDescription:
        return ModelDescription(1, "object-detection", {"image": "@image.png"})

    async def read(self, task: ObjectDetection) -> list[DetectionItem]:
        return [DetectionItem(task.image, task.threshold)]

    def usage(self, task: ObjectDetection) -> Usage:
        return Usage(num_image_tiles=task.num_image_tiles)

    def render(self, task: ObjectDetection, outputs: list[Any]) -> Result:
        """Return the objects. The output is a list of Found."""
        image = task.image
        found = [
            DetectedObject(label, score, _box(edges, image.source_width, image.source_height))
            for label, score, edges in outputs[0]
        ]
        return DetectedObjects(tuple(sorted(found, key=lambda each: -each.score))).to_result()


def _box(edges: list[float], width: int, height: int) -> Box:
    """Return a box in pixels, within the image."""
    left, top, right, bottom = (min(1.0, max(0.0, edge)) for edge in edges)
    return Box(round(left * width), round(top * height), round(right * width), round(bottom * height))
