"""Image to text: one item per image; the worker (`one_pass/image_to_text.py`) writes the description."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from engine.protocol.events import Result, Usage
from engine.protocol.images import Image
from engine.protocol.tasks.image_to_text import ImageToText, description_result
from engine.tasks.loading import LoadRequest
from engine.tasks.one_pass.host import OnePassHost
from engine.tasks.one_pass.task_model import OnePassModel
from engine.tasks.work import ModelDescription

_TOKENS_PER_IMAGE = 576  # tokens of an image in LLaVA, as an estimate for all vision models
_MAX_BATCH_COST = 8 * 1024


class DescriptionRequest(Struct, frozen=True, array_like=True):
    """An image to describe, with the fields of ImageToText."""

    image: Image
    prompt: str
    is_raw: bool
    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    repetition_penalty: float
    seed: int | None

    @property
    def cost(self) -> int:
        return _TOKENS_PER_IMAGE + self.max_tokens


class DescriberInfo(Struct, frozen=True):
    """The number of tokens of a prompt with its image and description together."""

    max_tokens: int


async def load(request: LoadRequest) -> ImageDescriber:
    """Load a model that describes images. Raises ModelLoadError."""
    return ImageDescriber(await OnePassHost.start(request, "engine.tasks.one_pass.image_to_text:load", _MAX_BATCH_COST))


class ImageDescriber(OnePassModel[ImageToText]):
    """One model of this node that describes images."""

    def describe(self) -> ModelDescription:
        return ModelDescription(self.host.info["max_tokens"], "image-to-text", {"image": "@image.png"})

    async def read(self, task: ImageToText) -> list[DescriptionRequest]:
        names = DescriptionRequest.__struct_fields__
        return [DescriptionRequest(**{name: getattr(task, name) for name in names})]

    def usage(self, task: ImageToText) -> Usage:
        return Usage(num_image_tiles=task.num_image_tiles)

    def measure(self, task: ImageToText, outputs: list[Any]) -> Usage:
        _, num_prompt_tokens, num_tokens = outputs[0]
        return Usage(
            prompt_tokens=num_prompt_tokens, completion_tokens=num_tokens, num_image_tiles=task.num_image_tiles
        )

    def render(self, _task: ImageToText, outputs: list[Any]) -> Result:
        """Return the description. The output has the text, the tokens of the prompt and those of the text."""
        return description_result(outputs[0][0])
