"""documents/images.py: images become RGB pixels, or are refused with a reason."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Iterator

import pytest
from PIL import Image

from documents.converter import Converter
from documents.images import MAX_SOURCE_PIXELS
from documents.kinds import IMAGE
from documents.messages import DecodedImage, Outcome
from documents.options import Options
from tests.fakes.pictures import GREEN, RED, WHITE, picture, png_header, saved

Decode = Callable[..., Outcome]
MAX_PIXELS = 1_000_000


@pytest.fixture(scope="module")
def decode() -> Iterator[Decode]:
    with asyncio.Runner() as runner:
        converter = Converter()

        def run(data: bytes, *, max_pixels: int = MAX_PIXELS, is_mask: bool = False) -> Outcome:
            options = Options(max_pixels=max_pixels, is_mask=is_mask)
            return runner.run(converter.convert("image", IMAGE, data, options))

        yield run
        runner.run(converter.close())


def decoded(outcome: Outcome) -> DecodedImage:
    assert outcome.refusal == ""
    assert outcome.image is not None
    return outcome.image


def color(image: DecodedImage, x: int, y: int) -> tuple[int, ...]:
    start = 3 * (y * image.width + x)
    return tuple(image.pixels[start : start + 3])


def is_near(found: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    return all(abs(one - other) < 12 for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("format_", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_each_format_becomes_rgb_pixels_row_by_row(decode: Decode, format_: str):
    image = decoded(decode(picture(64, 32, format_)))
    assert (image.width, image.height, image.source_width, image.source_height) == (64, 32, 64, 32)
    assert len(image.pixels) == 64 * 32 * 3
    assert is_near(color(image, 4, 4), RED)
    assert is_near(color(image, 60, 28), GREEN)


@pytest.mark.parametrize("format_", ["PNG", "JPEG", "WEBP"])
def test_large_image_is_scaled_down_and_keeps_its_shape(decode: Decode, format_: str):
    image = decoded(decode(picture(3000, 1500, format_), max_pixels=20_000))
    assert (image.width, image.height) == (200, 100)
    assert (image.source_width, image.source_height) == (3000, 1500)
    assert is_near(color(image, 20, 20), RED)


def test_orientation_of_a_photo_is_applied(decode: Decode):
    exif = Image.Exif()
    exif[0x0112] = 6  # shown turned clockwise: left is up
    image = decoded(decode(picture(64, 32, "JPEG", exif=exif)))
    assert (image.width, image.height, image.source_width, image.source_height) == (32, 64, 32, 64)
    assert is_near(color(image, 16, 4), RED)
    assert is_near(color(image, 16, 60), GREEN)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "I;16"])
def test_each_color_mode_becomes_rgb(decode: Decode, mode: str):
    content = Image.new(mode, (8, 8), 65535) if mode == "I;16" else Image.new("RGB", (8, 8), WHITE).convert(mode)
    image = decoded(decode(saved(content, "JPEG" if mode == "CMYK" else "PNG")))
    assert is_near(color(image, 4, 4), WHITE)


def test_transparent_areas_are_white_in_an_image_and_selected_in_a_mask(decode: Decode):
    content = Image.new("RGBA", (16, 8), (255, 0, 0, 255))
    content.paste((0, 0, 0, 0), (8, 0, 16, 8))
    image = decoded(decode(saved(content)))
    assert (color(image, 0, 0), color(image, 12, 4)) == (RED, WHITE)
    mask = decoded(decode(saved(content), is_mask=True))
    assert (color(mask, 0, 0), color(mask, 12, 4)) == ((0, 0, 0), WHITE)


def test_first_frame_of_an_animation_is_decoded(decode: Decode):
    frames = [Image.new("RGB", (16, 16), each) for each in (RED, GREEN)]
    for format_ in ("GIF", "WEBP", "PNG"):
        data = saved(frames[0], format_, save_all=True, append_images=frames[1:])
        assert is_near(color(decoded(decode(data)), 8, 8), RED)


def test_image_of_too_many_pixels_is_refused_before_it_is_decoded(decode: Decode):
    refusal = decode(png_header(60_000, 60_000)).refusal
    assert refusal.startswith("the image has 60000 x 60000 pixels; at most 50 million pixels")
    side = int(MAX_SOURCE_PIXELS**0.5) + 1
    assert f"{side} x {side}" in decode(png_header(side, side)).refusal


def test_largest_image_is_decoded_within_the_memory_limit(decode: Decode):
    content = Image.new("RGBA", (10_000, MAX_SOURCE_PIXELS // 10_000), (0, 255, 0, 255))
    image = decoded(decode(saved(content, compress_level=1)))
    assert (image.source_width, image.source_height) == (10_000, 5_000)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no image",
        picture()[:60],  # truncated
        picture(64, 32, "JPEG")[:400],
        png_header(4000, 4000),  # more pixels than data
        png_header(16, 16, (b"iCCP", b"bomb\0\0" + zlib.compress(bytes(200_000_000)))),
        png_header(16, 16, (b"zTXt", b"bomb\0\0" + zlib.compress(bytes(200_000_000)))),
        b"%PDF-1.4\n" + picture(),  # two formats in one file
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        b"RIFF\xff\xff\xff\x7fWEBPVP8X\x0a\0\0\0\0\0\0\0\xff\x3f\0\xff\x3f\0",  # 16,384 x 16,384
        b"II*\0" + bytes(100),
        b"BM" + b"\xff" * 60,
        b"GIF89a" + b"\xff" * 60,
    ],
    ids=range(13),
)
def test_damaged_and_malicious_files_are_refused_and_the_next_file_is_decoded(decode: Decode, data: bytes):
    outcome = decode(data)
    assert outcome.image is None
    assert outcome.refusal.startswith(("the image ", "conversion needs more than"))
    assert decoded(decode(picture())).width == 64


def test_content_after_the_image_and_metadata_are_dropped(decode: Decode):
    plain = decoded(decode(picture()))
    assert decoded(decode(picture() + b"PK\x03\x04<script>")) == plain
    assert decoded(decode(picture(icc_profile=bytes(3000)))) == plain
