"""Reader of OpenDocument text files: headings, paragraphs, lists, tables and links, renamed to HTML elements."""

from __future__ import annotations

from xml.etree.ElementTree import Element, tostring

from documents import markup
from documents.archives import attribute, local_name, open_archive, parse_part
from documents.errors import DocumentRefused
from documents.options import Options

# Other elements only group their content and become a `span`.
_HTML_NAMES = {
    "p": "p", "list": "ul", "list-item": "li", "list-header": "li", "a": "a", "line-break": "br",
    "table": "table", "table-row": "tr", "table-cell": "td", "covered-table-cell": "td",
} | dict.fromkeys(
    ("tracked-changes", "annotation", "annotation-end", "sequence-decls", "forms", "note-citation", "image"),
    "template",  # not rendered
)  # fmt: skip


def read(data: bytes, _name: str, options: Options) -> str:
    """Return the text of an .odt file. Raises DocumentRefused."""
    root = parse_part(open_archive(data), "content.xml")
    body = next((each for each in root.iter() if local_name(each) == "text"), None) if root is not None else None
    if body is None:
        raise DocumentRefused("the file is not an OpenDocument text file")
    for element in body.iter():
        _rename(element)
    return markup.render(tostring(body, "unicode", "html"), options)


def _rename(element: Element) -> None:
    """Replace an element's name and attributes by their HTML equivalents."""
    name, level, address = local_name(element), attribute(element, "outline-level"), attribute(element, "href")
    element.attrib = {"href": address} if name == "a" else {}
    if name == "h":
        element.tag = f"h{level}" if level in tuple("123456") else "h6" if level.isdigit() else "h1"
        return
    if name in ("s", "tab", "note-body"):
        element.text = " "
    if name == "note-body":  # a footnote stays within the paragraph that refers to it
        for each in element.iter():
            each.tag = "span"
    element.tag = _HTML_NAMES.get(name, "span")
