"""Reader of HTML files."""

from __future__ import annotations

from documents import markup, text_encoding
from documents.errors import DocumentRefused
from documents.options import Options


def read(data: bytes, _name: str, options: Options) -> str:
    """Return the text of a page. Raises DocumentRefused."""
    html = text_encoding.decode(data)
    if "<" not in html:
        raise DocumentRefused("the file is not HTML")
    return markup.render(html, options)
