"""XML files: shown as they are, once they are known to declare nothing that a reader would go and fetch."""

from __future__ import annotations

from documents import words
from documents.archives import check_xml
from documents.options import Options


def read(data: bytes, _name: str, options: Options) -> str:
    """Raises DocumentRefused."""
    check_xml(data)
    text = words.decode(data).strip()
    if options.output_format == "text":
        return text
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}xml\n{text}\n{fence}"
