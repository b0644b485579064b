"""The task object detection: the objects in an image, with scores and boxes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from msgspec import Struct

from engine.protocol.fields import media, number
from engine.protocol.images import Image, MediaKind
from engine.protocol.outcome import Outcome
from engine.protocol.rendering import Renderer, encode
from engine.protocol.tasks.output import TaskOutput
from engine.protocol.tasks.task import ModelLimits, Task

DEFAULT_THRESHOLD = 0.5


class ObjectDetection(Task, frozen=True, tag="object-detection", omit_defaults=True, kw_only=True):
    """An image to search for objects. Objects with a score below `threshold` are left out."""

    slug: ClassVar[str] = "object-detection"
    native_schemas: ClassVar[tuple[str, ...]] = ("object_detection",)
    media_fields: ClassVar[Mapping[str, MediaKind]] = {"image": "image"}

    image: Image
    threshold: float = DEFAULT_THRESHOLD

    @property
    def num_image_tiles(self) -> int:
        return self.image.num_tiles

    @classmethod
    def read_native(cls, body: Mapping[str, Any], _model: ModelLimits) -> Self:
        return cls(
            image=Image.of_file(media(body, "image")),
            threshold=number(body, "threshold", DEFAULT_THRESHOLD, minimum=0, maximum=1),
        )

    def native_renderer(self) -> NativeObjects:
        return NativeObjects()


class Box(Struct, frozen=True):
    """A rectangle in pixels of the image that the client sent, from its upper left corner."""

    xmin: int
    ymin: int
    xmax: int
    ymax: int


class DetectedObject(Struct, frozen=True):
    """An object with its class, the probability of the class, and its place."""

    label: str
    score: float
    box: Box


class DetectedObjects(TaskOutput, frozen=True):
    """The output: objects by falling score."""

    objects: tuple[DetectedObject, ...]


class NativeObjects(Renderer):
    """The native response."""

    def whole(self, outcome: Outcome) -> bytes:
        return encode(DetectedObjects.of(outcome).objects)
