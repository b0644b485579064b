"""Text to image: one item per image; the worker (`one_pass/text_to_image.py`) computes its steps.

Images take seconds to minutes, so the worker computes one at a time and gives way to other processes.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from engine.protocol.events import Result, Usage
from engine.protocol.images import Image
from engine.protocol.tasks.text_to_image import MAX_PROMPT_CHARACTERS, GeneratedImages, TextToImage, num_tiles
from engine.tasks.loading import LoadRequest
from engine.tasks.one_pass.host import OnePassHost
from engine.tasks.one_pass.task_model import OnePassModel
from engine.tasks.work import ModelDescription, Refused

_NICENESS = 15  # the time to the first token of a chat model on the same processor matters more than an image


class ImagePrompt(Struct, frozen=True, array_like=True):
    """One image for the worker. All values are those of `TextToImage`, with the size filled in."""

    prompt: str
    negative_prompt: str
    width: int
    height: int
    steps: int
    guidance: float | None
    strength: float
    seed: int
    image: Image | None
    mask: Image | None
    references: tuple[Image, ...]

    @property
    def cost(self) -> int:
        return self.steps * num_tiles(self.width, self.height)


class ImageModelInfo(Struct, frozen=True):
    """Inputs that a model accepts: its own size, the number that sides must be a multiple of, the kinds of images. A
    prompt must contain one of `words`, if there are any."""

    width: int
    height: int
    side_step: int
    takes_image: bool
    takes_mask: bool
    takes_references: bool
    words: tuple[str, ...] = ()


async def load(request: LoadRequest) -> ImageGenerator:
    """Load a model that makes images. Raises ModelLoadError."""
    entry = "engine.tasks.one_pass.text_to_image:load"
    return ImageGenerator(await OnePassHost.start(request, entry, max_batch_cost=1, niceness=_NICENESS))


class ImageGenerator(OnePassModel[TextToImage]):
    """One model of this node that makes images."""

    def describe(self) -> ModelDescription:
        return ModelDescription(MAX_PROMPT_CHARACTERS, "images/generations", {"prompt": "a red boat"})

    async def read(self, task: TextToImage) -> list[ImagePrompt]:
        """Return an item for each image. Raises Refused."""
        width, height = self._size(task)
        self._check(task, width, height)
        return [
            ImagePrompt(
                task.prompt, task.negative_prompt, width, height, task.steps, task.guidance, task.strength,
                task.seed + number, task.image, task.mask, task.references,
            )
            for number in range(task.num_images)
        ]  # fmt: skip

    def _size(self, task: TextToImage) -> tuple[int, int]:
        """Return the size of the output: that of the task, or of its image, or the model's own."""
        info = self.host.info
        if task.image is None or task.width or task.height:
            return task.width or info["width"], task.height or info["height"]
        step = info["side_step"]
        return max(step, task.image.width // step * step), max(step, task.image.height // step * step)

    def _check(self, task: TextToImage, width: int, height: int) -> None:
        """Raise Refused if the model does not support an input."""
        info = self.host.info
        if width % info["side_step"] or height % info["side_step"]:
            raise Refused("invalid_input", f"'/width' and '/height' must be multiples of {info['side_step']}")
        for name, is_used, is_supported in (
            ("image", task.image is not None, info["takes_image"]),
            ("mask", task.mask is not None, info["takes_mask"]),
            ("input_image_0", bool(task.references), info["takes_references"]),
        ):
            if is_used and not is_supported:
                raise Refused("invalid_input", f"'/{name}' is not supported by this model")
        words: list[str] = info["words"]
        if words and not set(words) & set(task.prompt.lower().replace(".", " ").replace(",", " ").split()):
            raise Refused("invalid_input", f"'/prompt' must contain one of {', '.join(words)}")

    def usage(self, task: TextToImage) -> Usage:
        width, height = self._size(task)
        return Usage(num_steps=task.num_steps, num_image_tiles=task.num_images * num_tiles(width, height))

    def render(self, _task: TextToImage, outputs: list[Any]) -> Result:
        return GeneratedImages(tuple(outputs)).to_result()
