"""Parts of an office file as trees of XML, without the names' spaces."""

from __future__ import annotations

import zipfile
from html import escape
from xml.etree.ElementTree import Element

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import ParseError, fromstring

from documents.errors import DocumentRefused


def tree(archive: zipfile.ZipFile, part: str) -> Element | None:
    """The root of a part; None where there is no such part. Raises DocumentRefused."""
    try:
        root: Element = fromstring(archive.read(part))
    except KeyError:
        return None
    except (ParseError, DefusedXmlException) as error:
        raise DocumentRefused("the file holds XML that cannot be read") from error
    return root


def local(element: Element) -> str:
    """An element's name without the space that it is of."""
    return element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""


def attribute(element: Element, name: str) -> str:
    """An attribute's value by its own name, "" without one."""
    return next((value for key, value in element.attrib.items() if key.rpartition("}")[2] == name), "")


def html_table(rows: list[list[str]]) -> str:
    """Cells of HTML."""
    lines = ("".join(f"<td>{cell}</td>" for cell in row) for row in rows)
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def escaped(text: str) -> str:
    return escape(text, quote=False)
