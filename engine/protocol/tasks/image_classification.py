"""The task image classification: what an image shows, as labels with scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from msgspec import Struct

from engine.protocol.fields import media
from engine.protocol.images import Image, MediaKind
from engine.protocol.outcome import Outcome
from engine.protocol.rendering import Renderer, encode
from engine.protocol.tasks.output import TaskOutput
from engine.protocol.tasks.task import ModelLimits, Task


class ImageClassification(Task, frozen=True, tag="image-classification", omit_defaults=True, kw_only=True):
    """An image to classify. Models see a small square of it, so every image counts as one tile."""

    slug: ClassVar[str] = "image-classification"
    native_schemas: ClassVar[tuple[str, ...]] = ("image_classification",)
    media_fields: ClassVar[Mapping[str, MediaKind]] = {"image": "image"}
    max_image_pixels: ClassVar[int] = 1_000_000

    image: Image

    @property
    def num_image_tiles(self) -> int:
        return 1

    @classmethod
    def read_native(cls, body: Mapping[str, Any], _model: ModelLimits) -> Self:
        return cls(image=Image.of_file(media(body, "image")))

    def native_renderer(self) -> NativeLabels:
        return NativeLabels()


class Label(Struct, frozen=True):
    """A class with its probability."""

    label: str
    score: float


class Labels(TaskOutput, frozen=True):
    """The output: the most likely classes, best first."""

    labels: tuple[Label, ...]


class NativeLabels(Renderer):
    """The native response."""

    def whole(self, outcome: Outcome) -> bytes:
        return encode(Labels.of(outcome).labels)
