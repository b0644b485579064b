"""Office files: zip archives of XML parts, checked before a reader opens them, and their parts as element trees.

Rejects encrypted archives, archives that expand beyond the limits, XML with entity declarations, and references to
external parts. Names are compared without their XML namespace.
"""

from __future__ import annotations

import io
import re
import zipfile
import zlib
from xml.etree.ElementTree import Element
from xml.parsers import expat

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import ParseError, fromstring

from documents.errors import DocumentRefused

MAX_PARTS = 5_000
MAX_EXPANDED_BYTES = 256 << 20
MAX_RATIO = 300  # limit for archives that expand to more than `_SMALL_BYTES`
_SMALL_BYTES = 16 << 20
_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
# Relationships whose target becomes part of the document, unlike the targets of links and templates.
_EMBEDDED = re.compile(r"/(image|subDocument|frame|aFChunk|oleObject)$")


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
                check_xml(archive.read(part), is_relations=part.filename.endswith(".rels"))
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, ValueError, OSError) as error:
        raise DocumentRefused("the file is damaged or its content does not match its type") from error
    return archive


def parse_part(archive: zipfile.ZipFile, part: str) -> Element | None:
    """Return the root element of a part, or None if the archive has no such part. Raises DocumentRefused."""
    try:
        root: Element = fromstring(archive.read(part))
    except KeyError:
        return None
    except (ParseError, DefusedXmlException) as error:
        raise DocumentRefused("the file contains XML that is not well-formed") from error
    return root


def local_name(element: Element) -> str:
    """Return the name of an element without its namespace."""
    return element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""


def attribute(element: Element, name: str) -> str:
    """Return the value of an attribute, found by its name without namespace, or "" if the attribute is missing."""
    return next((value for key, value in element.attrib.items() if key.rpartition("}")[2] == name), "")


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


def check_xml(data: bytes, *, is_relations: bool = False) -> None:
    """Raise DocumentRefused if XML is not well-formed, declares entities, or relates to external parts to embed."""
    parser = expat.ParserCreate()

    def refuse_entity(*_: object) -> int:
        raise DocumentRefused("the file declares XML entities, which are not supported")

    def check_relation(_name: str, attributes: dict[str, str]) -> None:
        if attributes.get("TargetMode") == "External" and _EMBEDDED.search(attributes.get("Type", "")):
            raise DocumentRefused("the file refers to an external part, which is not fetched")

    parser.EntityDeclHandler = refuse_entity
    parser.ExternalEntityRefHandler = refuse_entity
    parser.UnparsedEntityDeclHandler = refuse_entity
    if is_relations:
        parser.StartElementHandler = check_relation
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise DocumentRefused("the file contains XML that is not well-formed") from error
