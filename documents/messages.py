"""Messages between a converter and its worker: one job, one outcome."""

from __future__ import annotations

from msgspec import Struct

from documents.options import Options

ERROR_REPORT = b"document conversion failed: "
"""Start of the line that a worker writes to stderr about an unexpected error."""

NO_TEXT = "the file has no text: pages that are images cannot be converted"
"""The refusal of a PDF file without text."""


class Job(Struct, frozen=True, array_like=True):
    """One file. `reader` names the module that reads it; times in seconds, sizes in bytes."""

    name: str
    reader: str
    data: bytes
    options: Options
    timeout_s: int
    memory_bytes: int
    max_text_bytes: int


class DecodedImage(Struct, frozen=True, array_like=True):
    """An image: RGB pixels with 8 bits per color, row by row, and the size of the file's image."""

    width: int
    height: int
    pixels: bytes
    source_width: int
    source_height: int


class Outcome(Struct, frozen=True, array_like=True):
    """The text of a document and its estimated number of tokens, the samples of a recording, an image, pages as PNG
    files, or the reason why there is none of them."""

    text: str = ""
    num_tokens: int = 0
    refusal: str = ""
    samples: bytes = b""
    image: DecodedImage | None = None
    pages: tuple[bytes, ...] = ()
