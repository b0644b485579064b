"""Reader of PDF files whose pages are images: each page as a PNG file, for a model that reads text."""

from __future__ import annotations

import io

from PIL import Image
from pypdfium2 import PdfDocument, PdfiumError

from documents.errors import DocumentRefused
from documents.options import Options

MAX_SCANNED_PAGES = 20
_DOTS_PER_INCH, _POINTS_PER_INCH = 150, 72
_MAX_PIXELS = 2_000_000

Image.preinit()  # the sandbox cannot load modules


def read(data: bytes, _name: str, _options: Options) -> list[bytes]:
    """Return the pages as PNG files. Raises DocumentRefused."""
    try:
        document = PdfDocument(data)
        if len(document) > MAX_SCANNED_PAGES:
            raise DocumentRefused(f"the file has no text, and text in more than {MAX_SCANNED_PAGES} images is not read")
        return [_rendered(document, number) for number in range(len(document))]
    except PdfiumError:
        raise DocumentRefused("the file is damaged") from None


def _rendered(document: PdfDocument, number: int) -> bytes:
    page = document[number]
    width, height = page.get_size()
    scale = min(_DOTS_PER_INCH / _POINTS_PER_INCH, (_MAX_PIXELS / max(1.0, width * height)) ** 0.5)
    file = io.BytesIO()
    page.render(scale=scale).to_pil().convert("RGB").save(file, "PNG", compress_level=1)
    page.close()
    return file.getvalue()
