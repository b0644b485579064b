"""XML parts of office files as element trees. Names are compared without their XML namespace."""

from __future__ import annotations

import zipfile
from html import escape
from xml.etree.ElementTree import Element

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import ParseError, fromstring

from documents.errors import DocumentRefused


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


def html_table(rows: list[list[str]]) -> str:
    """Return an HTML table. The cells contain HTML."""
    lines = ("".join(f"<td>{cell}</td>" for cell in row) for row in rows)
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def escape_text(text: str) -> str:
    return escape(text, quote=False)
