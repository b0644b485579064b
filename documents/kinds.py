"""Supported file types, found by the file's name and declared media type. The reader checks the actual content."""

from __future__ import annotations

from dataclasses import dataclass

OPEN_XML = "application/vnd.openxmlformats-officedocument"
OPEN_DOCUMENT = "application/vnd.oasis.opendocument"


@dataclass(frozen=True)
class Kind:
    """A file type. `reader` is a module of this package, or `image` for files that only a model can describe. The first
    media type is the one that is listed."""

    extensions: tuple[str, ...]
    media_types: tuple[str, ...]
    reader: str

    @property
    def media_type(self) -> str:
        return self.media_types[0]


KINDS = (
    Kind((".pdf",), ("application/pdf", "application/x-pdf"), "pdf"),
    Kind((".html", ".htm"), ("text/html", "application/xhtml+xml"), "web_page"),
    Kind((".xml",), ("application/xml", "text/xml"), "xml_text"),
    Kind((".csv",), ("text/csv", "application/csv"), "comma_separated"),
    Kind((".docx",), (f"{OPEN_XML}.wordprocessingml.document",), "word"),
    Kind((".pptx",), (f"{OPEN_XML}.presentationml.presentation",), "slides"),
    Kind((".xlsx",), (f"{OPEN_XML}.spreadsheetml.sheet",), "sheets"),
    Kind((".xlsm",), ("application/vnd.ms-excel.sheet.macroenabled.12",), "sheets"),
    Kind((".xlsb",), ("application/vnd.ms-excel.sheet.binary.macroenabled.12",), "sheets"),
    Kind((".xls",), ("application/vnd.ms-excel",), "sheets"),
    Kind((".ods",), (f"{OPEN_DOCUMENT}.spreadsheet",), "sheets"),
    Kind((".odt",), (f"{OPEN_DOCUMENT}.text",), "open_text"),
    Kind((".jpeg", ".jpg"), ("image/jpeg", "image/jpg"), "image"),
    Kind((".png",), ("image/png",), "image"),
    Kind((".webp",), ("image/webp",), "image"),
    Kind((".svg",), ("image/svg+xml",), "image"),
)
AUDIO = Kind((".wav", ".flac", ".mp3", ".ogg"), ("audio/wav", "audio/flac", "audio/mpeg", "audio/ogg"), "audio")
"""Recordings, which are decoded for a model but are not converted to text."""
IMAGE = Kind(
    (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp"),
    ("image/png", "image/jpeg", "image/webp", "image/gif", "image/bmp"),
    "images",
)
"""Images, which are decoded for a model."""
PDF_SCANS = Kind((".pdf",), ("application/pdf",), "pdf_scans")
"""PDF files without text, whose pages are rendered for a model."""
_BY_EXTENSION = {extension: kind for kind in KINDS for extension in kind.extensions}
_BY_MEDIA_TYPE = {media_type: kind for kind in KINDS for media_type in kind.media_types}
# Media types that clients send for any file.
_GENERIC = {"", "application/octet-stream", "binary/octet-stream", "text/plain", "application/zip"}


def find_kind(name: str, media_type: str) -> Kind | None:
    """Return the type by media type, or by extension if the media type is generic.

    The extension decides between types with the same reader, because clients often send one media type for all
    spreadsheets.
    """
    plain = media_type.partition(";")[0].strip().lower()
    dot = name.rfind(".")
    by_name = _BY_EXTENSION.get(name[dot:].lower()) if dot >= 0 else None
    by_type = _BY_MEDIA_TYPE.get(plain)
    if by_type is not None and by_name is not None and by_type.reader == by_name.reader:
        return by_name
    return by_type if by_type is not None or plain not in _GENERIC else by_name
