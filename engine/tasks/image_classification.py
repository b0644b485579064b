"""Image classification: one item per image; the worker (`one_pass/image_classification.py`) computes the classes."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from engine.protocol.events import Result, Usage
from engine.protocol.tasks.image_classification import ImageClassification, Label, Labels
from engine.tasks.loading import LoadRequest
from engine.tasks.one_pass.host import OnePassHost
from engine.tasks.one_pass.image_item import ImageItem
from engine.tasks.one_pass.task_model import OnePassModel
from engine.tasks.work import ModelDescription

NUM_LABELS = 5
_MAX_BATCH = 16


class ClassifierInfo(Struct, frozen=True):
    """The number of classes of the model."""

    num_classes: int


async def load(request: LoadRequest) -> ImageClassifier:
    """Load an image classifier. Raises ModelLoadError."""
    return ImageClassifier(
        await OnePassHost.start(request, "engine.tasks.one_pass.image_classification:load", _MAX_BATCH)
    )


class ImageClassifier(OnePassModel[ImageClassification]):
    """One image classifier of this node."""

    def describe(self) -> ModelDescription:
        return ModelDescription(1, "image-classification", {"image": "@image.png"})

    async def read(self, task: ImageClassification) -> list[ImageItem]:
        return [ImageItem(task.image)]

    def usage(self, task: ImageClassification) -> Usage:
        return Usage(num_image_tiles=task.num_image_tiles)

    def render(self, _task: ImageClassification, outputs: list[Any]) -> Result:
        """Return the labels; the output has pairs of a label and its score, best first."""
        return Labels(tuple(Label(label, score) for label, score in outputs[0])).to_result()
