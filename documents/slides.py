"""Reader of PowerPoint presentations: the title, text, tables and notes of each slide, in slide order."""

from __future__ import annotations

import posixpath
import zipfile
from xml.etree.ElementTree import Element

from documents import markup
from documents.archives import open_archive
from documents.errors import DocumentRefused
from documents.options import Options
from documents.packages import attribute, escape_text, html_table, local_name, parse_part

_MAX_DEPTH = 50
_RELATION = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}id"


def read(data: bytes, _name: str, options: Options) -> str:
    """Return the text of a .pptx file. Raises DocumentRefused."""
    archive = open_archive(data)
    presentation = parse_part(archive, "ppt/presentation.xml")
    if presentation is None:
        raise DocumentRefused("the file is not a PowerPoint presentation")
    targets = _targets(archive, "ppt/presentation.xml")
    slides = [targets.get(each.get(_RELATION, "")) for each in presentation.iter() if local_name(each) == "sldId"]
    html = [_slide(archive, part, number) for number, part in enumerate(filter(None, slides), 1)]
    return markup.render("".join(html), options)


def _slide(archive: zipfile.ZipFile, part: str, number: int) -> str:
    root = parse_part(archive, part)
    title, body = "", []
    for shape in _shapes(root, 0) if root is not None else ():
        placeholder = next((attribute(each, "type") for each in shape.iter() if local_name(each) == "ph"), "")
        if placeholder in ("title", "ctrTitle") and not title:
            title = " ".join(_paragraphs(shape))
        elif placeholder not in ("sldNum", "dt", "ftr"):
            body.append(_content(shape))
    head = escape_text(f"Slide {number}: {title}" if title else f"Slide {number}")
    notes = _notes(archive, part)
    return f"<h2>{head}</h2>{''.join(body)}" + (f"<h3>Notes</h3>{notes}" if notes else "")


def _shapes(element: Element, depth: int) -> list[Element]:
    """Return the shapes of a slide, including the shapes inside groups."""
    found = []
    for child in element:
        if local_name(child) in ("sp", "graphicFrame", "pic"):
            found.append(child)
        elif depth < _MAX_DEPTH:
            found += _shapes(child, depth + 1)
    return found


def _content(shape: Element) -> str:
    if local_name(shape) == "pic":
        description = next((attribute(each, "descr") for each in shape.iter() if local_name(each) == "cNvPr"), "")
        return f"<p>{escape_text(description)}</p>" if description else ""
    grid = next((each for each in shape.iter() if local_name(each) == "tbl"), None)
    if grid is not None:
        rows = [each for each in grid if local_name(each) == "tr"]
        return html_table(
            [
                ["<br>".join(map(escape_text, _paragraphs(cell))) for cell in row if local_name(cell) == "tc"]
                for row in rows
            ]
        )
    lines = _paragraphs(shape)
    if len(lines) < 2:
        return "".join(f"<p>{escape_text(line)}</p>" for line in lines)
    return f"<ul>{''.join(f'<li>{escape_text(line)}</li>' for line in lines)}</ul>"


def _paragraphs(element: Element) -> list[str]:
    found = []
    for paragraph in element.iter():
        if local_name(paragraph) == "p":
            runs = (
                "\n" if local_name(each) == "br" else each.text or ""
                for each in paragraph.iter()
                if local_name(each) in ("t", "br")
            )
            text = " ".join("".join(runs).split())
            if text:
                found.append(text)
    return found


def _notes(archive: zipfile.ZipFile, part: str) -> str:
    notes = next((target for target in _targets(archive, part).values() if "/notesSlide" in target), None)
    root = parse_part(archive, notes) if notes else None
    lines = []
    for shape in _shapes(root, 0) if root is not None else ():
        if any(local_name(each) == "ph" and attribute(each, "type") == "body" for each in shape.iter()):
            lines += _paragraphs(shape)
    return "".join(f"<p>{escape_text(line)}</p>" for line in lines)


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
