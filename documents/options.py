"""Conversion options. Unknown options are ignored."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

_HOSTNAME = re.compile(r"(?=.{1,253}(:|$))[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?")

MAX_SELECTOR_PARTS = 24  # simple and compound selectors of `css_selector`
_BETWEEN_PARTS = re.compile(r"[\s>+~,():]+")

OutputFormat = Literal["markdown", "text"]
# Clients may send booleans and numbers as strings.
_Flag = bool | Annotated[str, Meta(pattern="^(true|false)$")] | None
_ImageCount = Annotated[int, Meta(ge=0, le=10)] | Annotated[str, Meta(pattern="^([0-9]|10)$")] | None


class Options(Struct, frozen=True):
    """Options of a conversion. `hostname` resolves relative links of a page; `css_selector` selects its converted
    parts. `max_pixels` is the size that larger images are scaled down to; `is_mask` reads an image as a mask."""

    output_format: OutputFormat = "markdown"
    hostname: str = ""
    css_selector: str = ""
    has_pdf_metadata: bool = True
    max_pixels: int = 0
    is_mask: bool = False


# The fields of `conversionOptions`. Fields about images are checked and have no effect until a model describes images.
class _Images(Struct, rename={"convert_og_image": "convertOGImage", "max_converted_images": "maxConvertedImages"}):
    convert: _Flag = None
    convert_og_image: _Flag = None
    max_converted_images: _ImageCount = None


class _Document(Struct):
    images: _Images | None = None


class _Pdf(_Document):
    metadata: _Flag = None


class _Html(_Document, rename="camel"):
    hostname: Annotated[str, Meta(max_length=300)] | None = None
    css_selector: Annotated[str, Meta(max_length=1024)] | None = None


class _Output(Struct):
    format: Annotated[str, Meta(pattern="^(markdown|text)$")] = "markdown"


class _Image(Struct, rename="camel"):
    description_language: Annotated[str, Meta(pattern="^(en|it|de|es|fr|pt)$")] = "en"


class _Fields(Struct):
    output: _Output | None = None
    image: _Image | None = None
    html: _Html | None = None
    pdf: _Pdf | None = None
    docx: _Document | None = None


def parse_options(given: Any) -> Options:
    """Parse the JSON of `conversionOptions`. Raises ValueError naming the field."""
    try:
        fields = msgspec.convert({} if given is None else given, _Fields)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at `$")
        pointer = path.rstrip("`").replace(".", "/") or "/"
        raise ValueError(f"'{pointer}' is invalid: {reason[0].lower()}{reason[1:]}") from None
    html, output, pdf = fields.html or _Html(), fields.output or _Output(), fields.pdf or _Pdf()
    hostname = (html.hostname or "").removeprefix("https://").removeprefix("http://").rstrip("/")
    if hostname and not _HOSTNAME.fullmatch(hostname):
        raise ValueError("'/html/hostname' must be a host name")
    if len(_BETWEEN_PARTS.split(html.css_selector or "")) > MAX_SELECTOR_PARTS:
        raise ValueError(f"'/html/cssSelector' must have at most {MAX_SELECTOR_PARTS} parts")
    output_format: OutputFormat = "text" if output.format == "text" else "markdown"
    return Options(output_format, hostname, html.css_selector or "", pdf.metadata not in (False, "false"))
