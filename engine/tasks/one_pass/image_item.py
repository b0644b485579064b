"""The item of tasks with one image per input, for the worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from engine.protocol.images import Image

if TYPE_CHECKING:
    import numpy as np


class ImageItem(Struct, frozen=True, array_like=True):
    """One image."""

    image: Image

    @property
    def cost(self) -> int:
        return 1


def pixels_of(image: Image) -> np.ndarray:
    """Return the pixels as [height, width, 3], uint8."""
    import numpy as np

    return np.frombuffer(image.pixels, np.uint8).reshape(image.height, image.width, 3)


def blank_image(side: int = 64) -> Image:
    """Return a black square, for the warm-up of a model."""
    return Image(side, side, bytes(3 * side * side), side, side)
