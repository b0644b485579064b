"""HTML files."""

from __future__ import annotations

from documents import markup, words
from documents.errors import DocumentRefused
from documents.options import Options


def read(data: bytes, _name: str, options: Options) -> str:
    """Raises DocumentRefused."""
    html = words.decode(data)
    if "<" not in html:
        raise DocumentRefused("the file is not HTML, as its name says")
    return markup.render(html, options)
