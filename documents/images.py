"""Reader of images: PNG, JPEG, WebP, GIF (first frame) and BMP to RGB pixels, with Pillow.

The content decides the format, whatever the file's name says. Metadata and color profiles are dropped.
"""

from __future__ import annotations

import io
import struct
import zlib

from PIL import (
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    ImageOps,
    JpegImagePlugin,
    MpoImagePlugin,
    PngImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)

from documents.errors import DocumentRefused
from documents.messages import DecodedImage
from documents.options import Options

MAX_SOURCE_PIXELS = 50_000_000  # cameras of phones make images of this size
MAX_SIDE = 30_000
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
_UNREADABLE = "the image is damaged, or neither PNG, JPEG, WebP, GIF nor BMP"
_ORIENTATION_TAG = 0x0112
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_SIDEWAYS = {_TURNS[5], _TURNS[6], _TURNS[7], _TURNS[8]}
# Exceptions of Pillow and of the libraries that it uses, for files that are no images or are damaged.
_ERRORS = (OSError, ValueError, SyntaxError, TypeError, KeyError, IndexError, EOFError, OverflowError, struct.error,
           zlib.error, Image.DecompressionBombError)  # fmt: skip

Image.MAX_IMAGE_PIXELS = None  # checked here, with messages for the client
Image.preinit()  # the sandbox cannot load modules
LOADED = (
    BmpImagePlugin, GifImagePlugin, JpegImagePlugin, MpoImagePlugin, PngImagePlugin, TiffImagePlugin, WebPImagePlugin,
)  # fmt: skip


def read(data: bytes, _name: str, options: Options) -> DecodedImage:
    """Return the pixels, scaled down to at most `options.max_pixels`. Raises DocumentRefused."""
    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            _check_size(*image.size)
            source = image.size
            image.draft("RGB", _fitted(source, 4 * options.max_pixels))  # JPEG decodes at a fraction of its size
            image.load()
            turn = _TURNS.get(_orientation(image))
            decoded = _plain(_scaled(image, _fitted(source, options.max_pixels)), is_mask=options.is_mask)
    except _ERRORS:
        raise DocumentRefused(_UNREADABLE) from None
    if turn is not None:
        decoded = decoded.transpose(turn)
        source = source[::-1] if turn in _SIDEWAYS else source
    return DecodedImage(*decoded.size, decoded.tobytes(), *source)


def _orientation(image: Image.Image) -> int:
    """Return the orientation in the file's metadata, or 1 (upright)."""
    try:
        return int(image.getexif().get(_ORIENTATION_TAG, 1))
    except _ERRORS:  # damaged metadata beside an image that can be read
        return 1


def _check_size(width: int, height: int) -> None:
    """Raise DocumentRefused for images that take too much memory to decode."""
    if width * height > MAX_SOURCE_PIXELS or max(width, height) > MAX_SIDE:
        limit = f"{MAX_SOURCE_PIXELS // 1_000_000} million pixels and {MAX_SIDE} pixels per side"
        raise DocumentRefused(f"the image has {width} x {height} pixels; at most {limit} are supported")


def _fitted(size: tuple[int, int], max_pixels: int) -> tuple[int, int]:
    """Return the size of an image of the same shape with at most `max_pixels`."""
    width, height = size
    factor = min(1.0, (max_pixels / (width * height)) ** 0.5)
    return max(1, int(width * factor)), max(1, int(height * factor))


def _scaled(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    """Return an image of at most this size, before it is copied into another color mode: the copy can be large."""
    if image.mode.startswith("I;16"):
        image = image.point(lambda value: value * (1 / 257)).convert("L")  # convert() alone would clip at 255
    if image.width <= size[0] and image.height <= size[1]:
        return image
    if image.mode not in ("L", "RGB", "RGBA", "CMYK"):
        image = image.convert("RGBA" if image.has_transparency_data else "RGB")
    return image.resize(size, Image.Resampling.BICUBIC, reducing_gap=2.0)


def _plain(image: Image.Image, *, is_mask: bool) -> Image.Image:
    """Return an RGB image without transparency."""
    if not image.has_transparency_data:
        return image.convert("L").convert("RGB") if is_mask else image.convert("RGB")
    with_alpha = image.convert("RGBA")
    if is_mask:
        return ImageOps.invert(with_alpha.getchannel("A")).convert("RGB")
    white = Image.new("RGB", with_alpha.size, "white")
    white.paste(with_alpha, mask=with_alpha.getchannel("A"))
    return white
