"""`POST A/ai/v1/images/generations` and `images/edits`: OpenAI's image generation. Images are PNG files in base64."""

from __future__ import annotations

import base64
from typing import Any

from catalog.card import ModelCard
from catalog.schemas import input_schema
from engine.protocol.api_format import ApiFormat
from engine.protocol.fields import BadInput, integer
from engine.protocol.images import Image
from engine.protocol.outcome import Outcome
from engine.protocol.rendering import Renderer, encode
from engine.protocol.tasks.text_to_image import (
    MAX_STEPS,
    GeneratedImages,
    TextToImage,
    default_steps,
    read_prompt,
    read_seed,
    read_side,
)
from gateway.call import Call, Endpoint, ParsedRequest
from gateway.inference.audio import decode_form
from gateway.model_names import require_task

_EDIT_STRENGTH = 0.8  # an edit without a mask must not replace the whole image


def _parse_generation(card: ModelCard, body: dict[str, Any]) -> ParsedRequest:
    require_task(card, TextToImage)
    accepted = input_schema(card, "openai_image_generations").coerce_and_validate(body)
    return _parsed(TextToImage(**_options(card, accepted)))


def _parse_edit(card: ModelCard, body: dict[str, Any]) -> ParsedRequest:
    require_task(card, TextToImage)
    if "image" not in body and "image[]" in body:
        body = body | {"image": body["image[]"]}
    accepted = input_schema(card, "openai_image_edits").coerce_and_validate(body)
    image, mask = (_file(accepted, name) for name in ("image", "mask"))
    default = _EDIT_STRENGTH if mask is None else 1.0
    options: dict[str, Any] = {"image": image, "mask": mask, "strength": accepted.get("strength", default)}
    if card.schema == "text_to_image_multipart" and mask is None:
        options = {"references": (image,)}
    return _parsed(TextToImage(**_options(card, accepted), **options))


def _parsed(task: TextToImage) -> ParsedRequest:
    return ParsedRequest(task, False, _OpenAiImages)


def _options(card: ModelCard, body: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a task that both routes share. Raises BadInput."""
    for name, supported in (("response_format", "b64_json"), ("output_format", "png")):
        if body.get(name, supported) != supported:
            raise BadInput(f"'/{name}' must be {supported}: {body[name]} is not supported")
    size = body.get("size", "auto")
    sides = {} if size == "auto" else dict(zip(("width", "height"), map(int, size.split("x")), strict=True))
    return {
        "prompt": read_prompt(body["prompt"], "/prompt"),
        "negative_prompt": body.get("negative_prompt", ""),
        "width": read_side(sides, "width"),
        "height": read_side(sides, "height"),
        "steps": integer(body, "steps", default_steps(card), minimum=1, maximum=MAX_STEPS),
        "guidance": body.get("guidance"),
        "seed": read_seed(body),
        "num_images": body.get("n", 1),
    }


def _file(body: dict[str, Any], name: str) -> Image | None:
    """Return a file of the form, which `decode_form` has put into base64."""
    return Image.of_file(base64.b64decode(body[name])) if name in body else None


class _OpenAiImages(Renderer):
    """`{"created", "data": [{"b64_json"}]}`."""

    def __init__(self, call: Call) -> None:
        self._created = int(call.started_at.timestamp())

    def whole(self, outcome: Outcome) -> bytes:
        images = GeneratedImages.of(outcome).images
        data = [{"b64_json": base64.b64encode(image).decode("ascii")} for image in images]
        return encode({"created": self._created, "data": data, "output_format": "png"})


IMAGE_GENERATIONS = Endpoint(
    ApiFormat.OPENAI, "Generate images from a prompt.", _parse_generation, schemas=("openai_image_generations",)
)
IMAGE_EDITS = Endpoint(
    ApiFormat.OPENAI,
    "Change an image by a prompt.",
    _parse_edit,
    schemas=("openai_image_edits",),
    decode_body=decode_form,
    body_media_type="multipart/form-data",
)
