"""Image files made for tests."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

from PIL import Image

RED, GREEN, WHITE = (255, 0, 0), (0, 255, 0), (255, 255, 255)


def picture(width: int = 64, height: int = 32, format_: str = "PNG", **options: Any) -> bytes:
    """Return a file whose left half is red and whose right half is green."""
    image = Image.new("RGB", (width, height), RED)
    image.paste(GREEN, (width // 2, 0, width, height))
    return saved(image, format_, **options)


def saved(image: Image.Image, format_: str = "PNG", **options: Any) -> bytes:
    """Return the image as a file."""
    file = io.BytesIO()
    image.save(file, format_, **options)
    return file.getvalue()


def png_header(width: int, height: int, *chunks: tuple[bytes, bytes]) -> bytes:
    """Return a PNG file of this size with these chunks and hardly any pixels."""
    parts = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)), *chunks]
    parts += [(b"IDAT", zlib.compress(bytes(10_000))), (b"IEND", b"")]
    made = b"\x89PNG\r\n\x1a\n"
    for kind, data in parts:
        made += struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return made
