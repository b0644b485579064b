"""The task image to text: a description of an image, or the answer to a question about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from engine.protocol.events import Result
from engine.protocol.fields import BadInput, boolean, integer, media, number, text
from engine.protocol.images import Image, MediaKind
from engine.protocol.outcome import Outcome
from engine.protocol.rendering import Renderer, encode
from engine.protocol.tasks.task import CHARACTERS_PER_TOKEN, ModelLimits, Task

DEFAULT_MAX_TOKENS = 512
MAX_PROMPT_CHARACTERS = 4096
_UNSUPPORTED = ("frequency_penalty", "presence_penalty")


class ImageToText(Task, frozen=True, tag="image-to-text", omit_defaults=True, kw_only=True):
    """An image to describe. A `prompt` is a question, or the start of the description, depending on the model. If
    `is_raw`, the prompt is not put into the model's chat template. A temperature of 0 decodes greedily."""

    slug: ClassVar[str] = "image-to-text"
    native_schemas: ClassVar[tuple[str, ...]] = ("image_to_text",)
    media_fields: ClassVar[Mapping[str, MediaKind]] = {"image": "image"}

    image: Image
    prompt: str = ""
    is_raw: bool = False
    max_tokens: int = DEFAULT_MAX_TOKENS
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 50
    repetition_penalty: float = 1.0
    seed: int | None = None

    @property
    def num_image_tiles(self) -> int:
        return self.image.num_tiles

    @property
    def max_completion_tokens(self) -> int:
        return self.max_tokens

    @property
    def num_estimated_tokens(self) -> int:
        return len(self.prompt) // CHARACTERS_PER_TOKEN + self.max_tokens

    @classmethod
    def read_native(cls, body: Mapping[str, Any], model: ModelLimits) -> Self:
        for name in _UNSUPPORTED:
            if body.get(name):
                raise BadInput(f"'/{name}' must be 0: models that describe images do not support '{name}'")
        limit = model.context_window
        return cls(
            image=Image.of_file(media(body, "image")),
            prompt=text(body.get("prompt") or "", "/prompt", max_characters=MAX_PROMPT_CHARACTERS),
            is_raw=boolean(body, "raw", False),
            max_tokens=integer(body, "max_tokens", min(DEFAULT_MAX_TOKENS, limit), minimum=1, maximum=limit),
            temperature=number(body, "temperature", 0.0, minimum=0, maximum=5),
            top_p=number(body, "top_p", 1.0, minimum=0.001, maximum=1),
            top_k=integer(body, "top_k", 50, minimum=1, maximum=50),
            repetition_penalty=number(body, "repetition_penalty", 1.0, minimum=0, maximum=2),
            seed=integer(body, "seed", None, minimum=1, maximum=9_999_999_999),
        )

    def native_renderer(self) -> NativeDescription:
        return NativeDescription()


def description_result(description: str) -> Result:
    """Return the output of the task."""
    return Result({"description": description})


class NativeDescription(Renderer):
    """The native response."""

    def whole(self, outcome: Outcome) -> bytes:
        assert outcome.result is not None
        return encode({"description": outcome.result.fields["description"]})
