"""Checks of office files, which are zip archives of XML parts, before a reader opens them.

Rejects encrypted archives, archives that expand beyond the limits, XML with entity declarations, and references to
external parts.
"""

from __future__ import annotations

import io
import re
import zipfile
import zlib
from xml.parsers import expat

from documents.errors import DocumentRefused

MAX_PARTS = 5_000
MAX_EXPANDED_BYTES = 256 << 20
MAX_RATIO = 300  # limit for archives that expand to more than `_SMALL_BYTES`
_SMALL_BYTES = 16 << 20
_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
# Relationships whose target becomes part of the document. A link's does not, nor a template's.
_FETCHED = re.compile(r"/(image|subDocument|frame|aFChunk|oleObject)$")


def open_archive(data: bytes) -> zipfile.ZipFile:
    """Return the archive after checking its sizes and all XML parts. Raises DocumentRefused."""
    if data.startswith(_OLE):
        raise DocumentRefused("the file is encrypted or has an older format than its type")
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
        parts = archive.infolist()
        _check_sizes(parts, len(data))
        for part in parts:
            if part.filename.lower().endswith((".xml", ".rels")):
                _check_xml(archive.read(part), is_relations=part.filename.endswith(".rels"))
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, ValueError, OSError) as error:
        raise DocumentRefused("the file is damaged or its content does not match its type") from error
    return archive


def _check_sizes(parts: list[zipfile.ZipInfo], num_bytes: int) -> None:
    if len(parts) > MAX_PARTS:
        raise DocumentRefused(f"the file has more than {MAX_PARTS} parts")
    if any(part.flag_bits & 0x1 for part in parts):
        raise DocumentRefused("the file is encrypted")
    if len({part.filename for part in parts}) < len(parts):
        raise DocumentRefused("the file has two parts with the same name")
    expanded = sum(part.file_size for part in parts)
    if expanded > MAX_EXPANDED_BYTES or (expanded > _SMALL_BYTES and expanded > MAX_RATIO * num_bytes):
        raise DocumentRefused(
            f"the file expands beyond the limit of {MAX_EXPANDED_BYTES} bytes or {MAX_RATIO} times its size"
        )
    if sum(part.compress_size for part in parts) > num_bytes:
        raise DocumentRefused("parts of the file overlap")


def check_xml(data: bytes) -> None:
    """Raise DocumentRefused if XML is not well-formed or declares entities."""
    _check_xml(data, is_relations=False)


def _check_xml(data: bytes, *, is_relations: bool) -> None:
    parser = expat.ParserCreate()

    def refuse(*_: object) -> int:
        raise DocumentRefused("the file declares XML entities, which are not supported")

    def look(_name: str, attributes: dict[str, str]) -> None:
        if attributes.get("TargetMode") == "External" and _FETCHED.search(attributes.get("Type", "")):
            raise DocumentRefused("the file refers to an external part, which is not fetched")

    parser.EntityDeclHandler = refuse
    parser.ExternalEntityRefHandler = refuse
    parser.UnparsedEntityDeclHandler = refuse
    if is_relations:
        parser.StartElementHandler = look
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise DocumentRefused("the file contains XML that is not well-formed") from error
