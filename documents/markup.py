"""HTML to Markdown or plain text: what people read of it. Fetches nothing, runs nothing."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urljoin

from bs4 import BeautifulSoup, Comment, Tag
from markdownify import ATX, MarkdownConverter

from documents.errors import DocumentRefused
from documents.options import Options

# Nothing that anyone reads, and what a page would have to load or run.
_UNREAD = (
    "script", "style", "template", "noscript", "iframe", "frame", "object", "embed", "applet", "svg", "canvas", "audio",
    "video", "link", "meta", "base", "input", "select", "textarea", "dialog",
)  # fmt: skip
_LINKS = ("http", "https", "mailto", "tel", "ftp")
_SCHEME = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.-]*):")
_BLANK_LINES = re.compile(r"\n[ \t]*\n(?:[ \t]*\n)+")


class _Plain(MarkdownConverter):
    """The same walk, leaving out every sign."""

    def _plain(self, _node: Any, text: str, parent_tags: Any = ()) -> str:  # noqa: ARG002
        return text

    convert_b = convert_strong = convert_em = convert_i = convert_code = convert_kbd = convert_samp = _plain
    convert_del = convert_s = convert_sub = convert_sup = convert_a = _plain

    def convert_img(self, node: Any, _text: str, parent_tags: Any = ()) -> str:  # noqa: ARG002
        return node.attrs.get("alt", "") or ""

    def convert_hN(self, _level: int, _node: Any, text: str, parent_tags: Any = ()) -> str:  # noqa: ARG002, N802
        return f"\n\n{text.strip()}\n\n"

    def convert_hr(self, *_: Any, **__: Any) -> str:
        return "\n\n"

    def convert_pre(self, _node: Any, text: str, parent_tags: Any = ()) -> str:  # noqa: ARG002
        return f"\n\n{text}\n\n"

    def convert_blockquote(self, _node: Any, text: str, parent_tags: Any = ()) -> str:  # noqa: ARG002
        return f"\n\n{text.strip()}\n\n"

    def convert_table(self, _node: Any, text: str, parent_tags: Any = ()) -> str:  # noqa: ARG002
        return f"\n\n{text.strip()}\n\n"

    def convert_tr(self, node: Any, _text: str, parent_tags: Any = ()) -> str:  # noqa: ARG002
        cells = node.find_all(["td", "th"], recursive=False)
        return "\t".join(" ".join(cell.get_text(" ").split()) for cell in cells) + "\n"


def render(html: str, options: Options) -> str:
    """A whole page, or the parts that the selector picks. Raises DocumentRefused."""
    try:
        soup = BeautifulSoup(html, "html.parser")
        for tag in soup(_UNREAD):
            tag.decompose()
        for comment in soup.find_all(string=lambda text: isinstance(text, Comment)):
            comment.extract()
        roots = _picked(soup, options.css_selector)
        base = f"https://{options.hostname}/" if options.hostname else ""
        for root in roots:
            _mend_links(root, base)
        return "\n\n".join(filter(None, (_write(root, options) for root in roots)))
    except RecursionError:
        raise DocumentRefused("the file is nested too deeply") from None


def _write(root: Tag, options: Options) -> str:
    converter: MarkdownConverter
    if options.output_format == "text":
        converter = _Plain(bullets="-", escape_asterisks=False, escape_underscores=False, escape_misc=False)
    else:
        converter = MarkdownConverter(heading_style=ATX, bullets="-", escape_misc=False, table_infer_header=True)
    text: str = converter.convert_soup(root)
    return _BLANK_LINES.sub("\n\n", text.replace("\xa0", " ")).strip()


def _picked(soup: BeautifulSoup, selector: str) -> list[Tag]:
    if not selector:
        return [soup.body or soup]
    import soupsieve

    try:
        found = soup.select(selector)
    except (soupsieve.SelectorSyntaxError, NotImplementedError, ValueError) as error:
        raise DocumentRefused("'/html/cssSelector' is no CSS selector") from error
    if not found:
        raise DocumentRefused("nothing of the page matches '/html/cssSelector'")
    chosen = {id(tag) for tag in found}
    return [tag for tag in found if not any(id(parent) in chosen for parent in tag.parents)]


def _mend_links(root: Tag, base: str) -> None:
    """Relative addresses are made whole where there is a host for them; no address of another kind stays."""
    for name, attribute in (("a", "href"), ("img", "src")):
        for tag in root.find_all(name):
            address = str(tag.get(attribute) or "").strip()
            scheme = _SCHEME.match(address)
            if scheme is not None and scheme[1].lower() not in _LINKS:
                del tag[attribute]
            elif base and scheme is None and not address.startswith("#"):
                try:
                    tag[attribute] = urljoin(base, address)
                except ValueError:
                    del tag[attribute]
