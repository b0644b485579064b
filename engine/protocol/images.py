"""Images of clients on their way to a model, and the files that the gateway decodes before a node receives a task."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

TILE = 512  # width and height in pixels of the tiles that images are charged by
_BYTES_PER_PIXEL = 3

MediaKind = Literal["audio", "image", "mask"]


class Image(Struct, frozen=True, omit_defaults=True):
    """An image: rows from top to bottom of RGB pixels with 8 bits per color.

    Until the gateway has decoded it, `pixels` is the file as the client sent it, or `url` its address, and all sizes
    are 0. Large images are scaled down; `source_width` and `source_height` are the size before that. The decoder
    applies the file's orientation and shows transparent areas over white.
    """

    width: int
    height: int
    pixels: bytes
    source_width: int
    source_height: int
    url: str = ""

    def __post_init__(self) -> None:
        if self.width and len(self.pixels) != self.width * self.height * _BYTES_PER_PIXEL:
            raise ValueError("the size of an image must be that of its pixels")

    @classmethod
    def of_file(cls, file: bytes) -> Image:
        """Return an image that is not decoded yet."""
        return cls(0, 0, file, 0, 0)

    @classmethod
    def of_url(cls, url: str) -> Image:
        """Return an image that is neither fetched nor decoded yet."""
        return cls(0, 0, b"", 0, 0, url)

    @property
    def is_decoded(self) -> bool:
        return self.width > 0

    @property
    def num_tiles(self) -> int:
        """The number of tiles of TILE by TILE pixels that cover the decoded image."""
        return -(-self.width // TILE) * -(-self.height // TILE)


class MediaFile(Struct, frozen=True):
    """A file of a task that the gateway decodes, and fetches first if it has a `url` instead of `data`.

    `field` is its name in error messages. A mask is an image whose white areas are to be changed; in a mask file with
    transparency these are the transparent areas. Images with more than `max_pixels` are scaled down.
    """

    field: str
    kind: MediaKind
    data: bytes
    max_pixels: int = 0
    url: str = ""
