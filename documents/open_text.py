"""Reader of OpenDocument text files: headings, paragraphs, lists, tables and links."""

from __future__ import annotations

from html import escape
from xml.etree.ElementTree import Element

from documents import markup
from documents.archives import open_archive
from documents.errors import DocumentRefused
from documents.options import Options
from documents.packages import attribute, escape_text, html_table, local_name, parse_part

_MAX_SPACES = 100
_MAX_REPEATED = 100
_SKIPPED = {"tracked-changes", "annotation", "annotation-end", "sequence-decls", "forms", "note-citation", "image"}


def read(data: bytes, _name: str, options: Options) -> str:
    """Return the text of an .odt file. Raises DocumentRefused."""
    root = parse_part(open_archive(data), "content.xml")
    body = next((each for each in root.iter() if local_name(each) == "text"), None) if root is not None else None
    if body is None:
        raise DocumentRefused("the file is not an OpenDocument text file")
    try:
        return markup.render(_blocks(body), options)
    except RecursionError:
        raise DocumentRefused("the file is nested too deeply") from None


def _blocks(parent: Element) -> str:
    return "".join(map(_block, parent))


def _block(element: Element) -> str:
    name = local_name(element)
    if name in _SKIPPED:
        return ""
    if name == "h":
        level = attribute(element, "outline-level")
        number = min(6, max(1, int(level))) if level.isascii() and level.isdigit() and len(level) < 3 else 1
        return f"<h{number}>{_line(element)}</h{number}>"
    if name == "p":
        return f"<p>{_line(element)}</p>"
    if name == "list":
        items = (each for each in element if local_name(each) in ("list-item", "list-header"))
        return f"<ul>{''.join(f'<li>{_blocks(each)}</li>' for each in items)}</ul>"
    if name == "table":
        return html_table([_cells(row) for row in element.iter() if local_name(row) == "table-row"])
    return _blocks(element)


def _cells(row: Element) -> list[str]:
    cells: list[str] = []
    for cell in row:
        if local_name(cell) in ("table-cell", "covered-table-cell"):
            repeated = attribute(cell, "number-columns-repeated")
            times = int(repeated) if repeated.isascii() and repeated.isdigit() and len(repeated) < 4 else 1
            lines = [_line(each) for each in cell.iter() if local_name(each) in ("p", "h")]
            cells += ["<br>".join(lines)] * min(times, _MAX_REPEATED)
    return cells


def _line(element: Element) -> str:
    parts = [escape_text(element.text or "")]
    for child in element:
        name = local_name(child)
        if name == "s":
            count = attribute(child, "c")
            is_count = count.isascii() and count.isdigit() and len(count) < 4
            parts.append(" " * (min(int(count), _MAX_SPACES) if is_count else 1))
        elif name in ("tab", "line-break"):
            parts.append("<br>" if name == "line-break" else " ")
        elif name == "a":
            parts.append(f'<a href="{escape(attribute(child, "href"))}">{_line(child)}</a>')
        elif name not in _SKIPPED:
            parts.append(_line(child))
        parts.append(escape_text(child.tail or ""))
    return "".join(parts)
