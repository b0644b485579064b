"""Reader of XML files. Returns the XML unchanged after checking that it is well-formed and declares no entities."""

from __future__ import annotations

from documents import text_encoding
from documents.archives import check_xml
from documents.options import Options


def read(data: bytes, _name: str, options: Options) -> str:
    """Return the XML, in a code block for Markdown. Raises DocumentRefused."""
    check_xml(data)
    text = text_encoding.decode(data).strip()
    if options.output_format == "text":
        return text
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}xml\n{text}\n{fence}"
