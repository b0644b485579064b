"""Reader of PowerPoint presentations: the title, text, tables and notes of each slide, in slide order."""

from __future__ import annotations

import posixpath
import zipfile
from collections.abc import Iterable
from html import escape
from xml.etree.ElementTree import Element

from documents import markup
from documents.archives import attribute, local_name, open_archive, parse_part
from documents.errors import DocumentRefused
from documents.options import Options

_RELATION = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}id"


def read(data: bytes, _name: str, options: Options) -> str:
    """Return the text of a .pptx file. Raises DocumentRefused."""
    archive = open_archive(data)
    presentation = parse_part(archive, "ppt/presentation.xml")
    if presentation is None:
        raise DocumentRefused("the file is not a PowerPoint presentation")
    targets = _targets(archive, "ppt/presentation.xml")
    slides = [targets.get(slide.get(_RELATION, "")) for slide in _find_all(presentation, "sldId")]
    html = [_slide(archive, part, number) for number, part in enumerate(filter(None, slides), 1)]
    return markup.render("".join(html), options)


def _slide(archive: zipfile.ZipFile, part: str, number: int) -> str:
    title, body = "", []
    for shape in _shapes(archive, part):
        placeholder = _placeholder(shape)
        if placeholder in ("title", "ctrTitle") and not title:
            title = " ".join(_paragraphs(shape))
        elif placeholder not in ("sldNum", "dt", "ftr"):
            body.append(_content(shape))
    notes_parts = [target for target in _targets(archive, part).values() if "/notesSlide" in target]
    notes = [shape for notes_part in notes_parts for shape in _shapes(archive, notes_part)]
    lines = [line for shape in notes if _placeholder(shape) == "body" for line in _paragraphs(shape)]
    head = _elements("h2", [f"Slide {number}: {title}" if title else f"Slide {number}"])
    return head + "".join(body) + ("<h3>Notes</h3>" + _elements("p", lines) if lines else "")


def _shapes(archive: zipfile.ZipFile, part: str) -> list[Element]:
    """Return the shapes of a slide or of its notes, including the shapes inside groups."""
    root = parse_part(archive, part)
    return [] if root is None else _find_all(root, "sp", "graphicFrame", "pic")


def _placeholder(shape: Element) -> str:
    return next((attribute(each, "type") for each in _find_all(shape, "ph")), "")


def _content(shape: Element) -> str:
    """Return the HTML of a shape: a picture's description, a table, a paragraph or a list of paragraphs."""
    if local_name(shape) == "pic":
        return _elements("p", filter(None, [attribute(each, "descr") for each in _find_all(shape, "cNvPr")[:1]]))
    if _find_all(shape, "tbl"):
        rows = [[" ".join(_paragraphs(cell)) for cell in _find_all(row, "tc")] for row in _find_all(shape, "tr")]
        return "<table>" + "".join("<tr>" + _elements("td", row) + "</tr>" for row in rows) + "</table>"
    paragraphs = _paragraphs(shape)
    return _elements("p", paragraphs) if len(paragraphs) < 2 else f"<ul>{_elements('li', paragraphs)}</ul>"


def _paragraphs(element: Element) -> list[str]:
    """Return the paragraphs that have text."""
    texts = (
        "".join("\n" if local_name(each) == "br" else each.text or "" for each in _find_all(paragraph, "t", "br"))
        for paragraph in _find_all(element, "p")
    )
    return [" ".join(text.split()) for text in texts if text.strip()]


def _find_all(element: Element, *names: str) -> list[Element]:
    return [each for each in element.iter() if local_name(each) in names]


def _elements(name: str, texts: Iterable[str]) -> str:
    """Return an HTML element for each text."""
    return "".join(f"<{name}>{escape(text, quote=False)}</{name}>" for text in texts)


def _targets(archive: zipfile.ZipFile, part: str) -> dict[str, str]:
    """Return the internal relationships of a part: relationship id to the path of the target in the archive."""
    folder, name = posixpath.split(part)
    root = parse_part(archive, f"{folder}/_rels/{name}.rels")
    if root is None:
        return {}
    return {
        attribute(each, "Id"): posixpath.normpath(posixpath.join("/", folder, attribute(each, "Target"))).lstrip("/")
        for each in root
        if attribute(each, "TargetMode") != "External"
    }
