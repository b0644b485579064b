"""The task text to image: images of a text, which may start from an image, or change a masked part of one."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import msgspec
from msgspec import Struct

from engine.protocol.events import Result
from engine.protocol.fields import BadInput, integer, media, number, text
from engine.protocol.images import TILE, Image, MediaKind
from engine.protocol.outcome import Outcome
from engine.protocol.rendering import Renderer, encode
from engine.protocol.tasks.task import ModelLimits, Task

MAX_PROMPT_CHARACTERS = 4096
MAX_IMAGES = 4
MAX_STEPS = 50
MIN_SIDE, MAX_SIDE = 256, 2048
MAX_SEED = 2**53 - 1
_SIDE_STEP = 8  # the encoders of images divide their sides by 8
_DEFAULT_STEPS = {"text_to_image": 20, "text_to_image_base64": 4, "text_to_image_multipart": 25}
_DEFAULT_SIDE = 1024  # for estimates, if the client leaves the size to the model
_REFERENCES = tuple(f"input_image_{number}" for number in range(4))
_BYTES_SCHEMA = "text_to_image"


class TextToImage(Task, frozen=True, tag="text-to-image", omit_defaults=True, kw_only=True):
    """A prompt for `num_images` images with the seeds `seed`, `seed` + 1 and so on.

    `width` and `height` are 0 for the model's own size, `guidance` is None for the model's own. `strength` is how much
    of `image` is replaced, from 0 to 1. White areas of `mask` are painted again. `references` are images that the
    prompt refers to. `is_json` is True if the native response is a JSON document.
    """

    slug: ClassVar[str] = "text-to-image"
    native_schemas: ClassVar[tuple[str, ...]] = tuple(_DEFAULT_STEPS)
    media_fields: ClassVar[Mapping[str, MediaKind]] = {"image": "image", "mask": "mask", "references": "image"}
    max_image_pixels: ClassVar[int] = MAX_SIDE * MAX_SIDE

    prompt: str
    negative_prompt: str = ""
    width: int = 0
    height: int = 0
    steps: int
    guidance: float | None = None
    strength: float = 1.0
    seed: int
    image: Image | None = None
    mask: Image | None = None
    references: tuple[Image, ...] = ()
    num_images: int = 1
    is_json: bool = False

    def __post_init__(self) -> None:
        if self.mask is not None and self.image is None:
            raise ValueError("a mask needs an image")

    @property
    def num_steps(self) -> int:
        return self.steps * self.num_images

    @property
    def num_image_tiles(self) -> int:
        return self.num_images * num_tiles(self.width or _DEFAULT_SIDE, self.height or _DEFAULT_SIDE)

    @property
    def num_estimated_tokens(self) -> int:
        return 0

    @classmethod
    def read_native(cls, body: Mapping[str, Any], model: ModelLimits) -> Self:
        default_steps = _DEFAULT_STEPS[model.schema]
        steps = body.get("num_steps") or body.get("steps") or default_steps
        image = "image_b64" if body.get("image_b64") is not None else "image"
        guidance = number(body, "guidance", -1, minimum=0, maximum=50)
        if body.get("mask") is not None and body.get(image) is None:
            raise BadInput("'/mask' needs an '/image'")
        return cls(
            prompt=read_prompt(body.get("prompt"), "/prompt"),
            negative_prompt=text(
                body.get("negative_prompt") or "", "/negative_prompt", max_characters=MAX_PROMPT_CHARACTERS
            ),
            width=read_side(body, "width"),
            height=read_side(body, "height"),
            steps=integer({"steps": steps}, "steps", default_steps, minimum=1, maximum=MAX_STEPS),
            guidance=None if guidance < 0 else guidance,
            strength=number(body, "strength", 1.0, minimum=0, maximum=1),
            seed=read_seed(body),
            image=_image(body, image),
            mask=_image(body, "mask"),
            references=tuple(found for name in _REFERENCES if (found := _image(body, name)) is not None),
            is_json=model.schema != _BYTES_SCHEMA,
        )

    def native_renderer(self) -> Renderer:
        return ImageInJson() if self.is_json else ImageFile()


def num_tiles(width: int, height: int) -> int:
    """Return the number of tiles that cover an image."""
    return -(-width // TILE) * -(-height // TILE)


def default_steps(model: ModelLimits) -> int:
    """Return the number of steps for a model whose client does not choose it."""
    return _DEFAULT_STEPS[model.schema]


def random_seed() -> int:
    return secrets.randbelow(2**32)


def read_prompt(value: Any, pointer: str) -> str:
    """Return a prompt that is not blank. Raises BadInput."""
    found = text(value, pointer, max_characters=MAX_PROMPT_CHARACTERS)
    if not found.strip():
        raise BadInput(f"'{pointer}' must not be blank")
    return found


def read_seed(body: Mapping[str, Any]) -> int:
    """Return the seed, or a random one. Raises BadInput."""
    seed: int | None = integer(body, "seed", None, minimum=0, maximum=MAX_SEED)
    return random_seed() if seed is None else seed


def read_side(body: Mapping[str, Any], name: str) -> int:
    """Return the width or height in pixels, 0 for the model's own. Raises BadInput."""
    side: int = integer(body, name, 0, minimum=MIN_SIDE, maximum=MAX_SIDE)
    if side % _SIDE_STEP:
        raise BadInput(f"'/{name}' must be a multiple of {_SIDE_STEP}")
    return side


def _image(body: Mapping[str, Any], name: str) -> Image | None:
    """Return an image as the client sent it. Raises BadInput."""
    return None if body.get(name) is None else Image.of_file(media(body, name))


class GeneratedImages(Struct, frozen=True):
    """The output: PNG files."""

    images: tuple[bytes, ...]

    @classmethod
    def of(cls, outcome: Outcome) -> Self:
        """Return the images of a successful call."""
        assert outcome.result is not None
        return msgspec.convert(outcome.result.fields, cls)

    def to_result(self) -> Result:
        return Result({"images": self.images})


class ImageFile(Renderer):
    """The PNG file itself."""

    media_type = "image/png"

    def whole(self, outcome: Outcome) -> bytes:
        return GeneratedImages.of(outcome).images[0]

    def whole_json(self, outcome: Outcome) -> bytes:
        return ImageInJson().whole(outcome)


class ImageInJson(Renderer):
    """`{"image": base64}`."""

    def whole(self, outcome: Outcome) -> bytes:
        return encode({"image": base64.b64encode(GeneratedImages.of(outcome).images[0]).decode("ascii")})
