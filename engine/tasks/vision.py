"""Vision: images of a conversation become vectors in the prompt.

The vision part of a model runs in a worker of its own (`one_pass/vision_encoder.py`), which encodes the images of many
calls in batches. The prompt has one image token per image, which is replaced by as many as the image has vectors, with
tokens between them if the model separates the rows of an image.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Sequence
from itertools import groupby

import msgspec
import numpy as np
from msgspec import Struct

from engine.protocol.events import Event, Failed, Finished, Result, Usage
from engine.protocol.images import Image
from engine.scheduling.sequence import PromptImage
from engine.tasks.loading import LoadRequest
from engine.tasks.one_pass.host import OnePassHost
from engine.tasks.one_pass.image_item import ImageItem
from engine.tasks.work import Refused

_ARCHITECTURES = (
    "LlavaForConditionalGeneration",
    "Gemma3ForConditionalGeneration",
    "Mistral3ForConditionalGeneration",
    "Qwen2VLForConditionalGeneration",
    "Qwen2_5_VLForConditionalGeneration",
)
_MAX_BATCH_IMAGES = 8


class VisionInfo(Struct, frozen=True):
    """The image token, and the size of an image's vectors.

    `markup` is the text that the chat template writes for an image, and the text that replaces it before tokens are
    made. The tokens of an image attend to each other if `is_mutual`.
    """

    token_id: int
    hidden_size: int
    markup: tuple[str, str] | None = None
    is_mutual: bool = False


class EncodedImage(Struct, frozen=True, array_like=True):
    """An image as the tokens that replace its image token, and little-endian float32 vectors for the image tokens among
    them. `grid` is the number of rows and columns of tokens if positions depend on them."""

    token_ids: list[int]
    vectors: bytes
    grid: tuple[int, int] | None


class Vision:
    """The vision part of one model."""

    def __init__(self, host: OnePassHost) -> None:
        self._host = host
        self._info = msgspec.convert(host.info, VisionInfo)

    @property
    def is_alive(self) -> bool:
        return self._host.is_alive

    async def close(self) -> None:
        await self._host.close()

    @property
    def markup(self) -> tuple[str, str] | None:
        """See `VisionInfo`."""
        return self._info.markup

    async def insert(
        self, prompt: Sequence[int], images: Sequence[Image]
    ) -> tuple[list[int], tuple[PromptImage, ...], int]:
        """Replace the image tokens of a prompt by those of the images. Return the prompt, its images, and the device
        time in microseconds. Raises Refused, also if the chat template has not rendered all images."""
        if sum(token_id == self._info.token_id for token_id in prompt) != len(images):
            raise Refused("invalid_input", "the chat template of this model does not accept images in this place")
        outputs, usage = await self._run([ImageItem(image) for image in images])
        expanded, found = await asyncio.to_thread(self._expand, prompt, images, outputs)
        return expanded, tuple(found), usage.device_us

    def _expand(
        self, prompt: Sequence[int], images: Sequence[Image], outputs: Sequence[bytes]
    ) -> tuple[list[int], list[PromptImage]]:
        token_id, is_mutual = self._info.token_id, self._info.is_mutual
        following = zip(images, outputs, strict=True)
        expanded: list[int] = []
        found: list[PromptImage] = []
        for each in prompt:
            if each != token_id:
                expanded.append(each)
                continue
            image, output = next(following)
            encoded = msgspec.msgpack.decode(output, type=EncodedImage)
            vectors = np.frombuffer(encoded.vectors, "<f4").reshape(-1, self._info.hidden_size)
            digest, start, used = digest_of(image), len(expanded), 0
            for is_image, run in groupby(encoded.token_ids, lambda own: own == token_id):
                length = len(list(run))
                if is_image:
                    own = vectors[used : used + length]
                    found.append(PromptImage(start, digest, own, encoded.grid, is_mutual))
                    used += length
                start += length
            expanded += encoded.token_ids
        return expanded, found

    async def _run(self, items: list[ImageItem]) -> tuple[list[bytes], Usage]:
        ended: asyncio.Future[Finished | Failed] = asyncio.get_running_loop().create_future()
        found: list[bytes] = []

        def collect(outputs: list[bytes]) -> Result:
            found.extend(outputs)
            return Result()

        def on_event(event: Event) -> None:
            if isinstance(event, Finished | Failed) and not ended.done():
                ended.set_result(event)

        job = self._host.submit(items, collect, on_event, lambda _outputs: Usage())
        try:
            end = await ended
        except asyncio.CancelledError:
            job.cancel()
            raise
        if isinstance(end, Failed):
            raise Refused(end.reason, end.message, is_retryable=end.is_retryable)
        return found, end.usage


def digest_of(image: Image) -> bytes:
    """Return a digest of the size and the pixels of an image."""
    digest = hashlib.blake2b(image.width.to_bytes(4, "little") + image.height.to_bytes(4, "little"), digest_size=32)
    digest.update(image.pixels)
    return digest.digest()


async def load_vision(request: LoadRequest) -> Vision | None:
    """Load the vision part of a model; None if it has none. Raises ModelLoadError."""
    config = request.folder / "config.json"
    if not config.is_file() or json.loads(config.read_bytes()).get("architectures", [None])[0] not in _ARCHITECTURES:
        return None
    entry = "engine.tasks.one_pass.vision_encoder:load"
    return Vision(await OnePassHost.start(request, entry, _MAX_BATCH_IMAGES))
