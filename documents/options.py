"""Conversion options. Unknown options are ignored."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

LANGUAGES = ("en", "it", "de", "es", "fr", "pt")
MAX_IMAGES = 10
MAX_SELECTOR = 1024
_HOSTNAME = re.compile(r"(?=.{1,253}(:|$))[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?")

OutputFormat = Literal["markdown", "text"]


class Options(Struct, frozen=True):
    """Options of a conversion. `hostname` resolves relative links of a page; `css_selector` selects its converted
    parts. Options for images have no effect until a model describes images."""

    output_format: OutputFormat = "markdown"
    image_language: str = "en"
    hostname: str = ""
    css_selector: str = ""
    has_pdf_metadata: bool = True


def parse_options(given: Any) -> Options:
    """Parse the JSON of `conversionOptions`. Raises ValueError naming the field."""
    if given is None:
        return Options()
    root = _object(given, "")
    html, pdf = _object(root.get("html"), "/html"), _object(root.get("pdf"), "/pdf")
    for name, part in (("html", html), ("pdf", pdf), ("docx", _object(root.get("docx"), "/docx"))):
        _check_images(_object(part.get("images"), f"/{name}/images"), f"/{name}/images")
    output = _object(root.get("output"), "/output").get("format", "markdown")
    if output not in ("markdown", "text"):
        raise ValueError("'/output/format' must be markdown or text")
    language = _object(root.get("image"), "/image").get("descriptionLanguage", "en")
    if language not in LANGUAGES:
        raise ValueError(f"'/image/descriptionLanguage' must be one of {', '.join(LANGUAGES)}")
    hostname = _text(html, "hostname", "/html", 300).removeprefix("https://").removeprefix("http://").rstrip("/")
    if hostname and not _HOSTNAME.fullmatch(hostname):
        raise ValueError("'/html/hostname' must be a host name")
    selector = _text(html, "cssSelector", "/html", MAX_SELECTOR)
    return Options(output, language, hostname, selector, _flag(pdf, "metadata", "/pdf", True))


def _check_images(images: Mapping[str, Any], path: str) -> None:
    _flag(images, "convert", path, False)
    _flag(images, "convertOGImage", path, False)
    most = images.get("maxConvertedImages", 0)
    if isinstance(most, str) and most.isascii() and most.isdigit() and len(most) < 4:
        most = int(most)
    if isinstance(most, bool) or not isinstance(most, int) or not 0 <= most <= MAX_IMAGES:
        raise ValueError(f"'{path}/maxConvertedImages' must be an integer from 0 to {MAX_IMAGES}")


def _object(value: Any, path: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError(f"Type mismatch of '{path or '/'}', expected 'object'")
    return value


def _text(part: Mapping[str, Any], field: str, path: str, max_length: int) -> str:
    value = part.get(field)
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > max_length:
        raise ValueError(f"'{path}/{field}' must be text of at most {max_length} characters")
    return value


def _flag(part: Mapping[str, Any], field: str, path: str, default: bool) -> bool:
    value = part.get(field)
    known = {"true": True, "false": False}
    if value is None:
        return default
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value in known:
        return known[value]
    raise ValueError(f"Type mismatch of '{path}/{field}', expected 'boolean'")
