"""HTML to Markdown or plain text, for the visible content of a page. Fetches nothing and runs no scripts."""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Iterator
from typing import Any
from urllib.parse import urljoin

import soupsieve
from bs4 import BeautifulSoup, Comment, Tag
from markdownify import ATX, MarkdownConverter

from documents.errors import DocumentRefused
from documents.options import Options

# Elements without visible text, and elements that a browser would load or run.
_SKIPPED = (
    "script", "style", "template", "noscript", "iframe", "frame", "object", "embed", "applet", "svg", "canvas", "audio",
    "video", "link", "meta", "base", "input", "select", "textarea", "dialog",
)  # fmt: skip
_SELECTION_S = 2.0  # CPU time: selectors with several combinators can take exponential time
_LINK_SCHEMES = ("http", "https", "mailto", "tel", "ftp")
_SCHEME = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.-]*):")
_BLANK_LINES = re.compile(r"\n[ \t]*\n(?:[ \t]*\n)+")


class _PlainTextConverter(MarkdownConverter):
    """Converts HTML to text without Markdown syntax."""

    def _plain_text(self, _node: Any, text: str, parent_tags: Any = ()) -> str:  # noqa: ARG002
        return text

    convert_b = convert_strong = convert_em = convert_i = convert_code = convert_kbd = convert_samp = _plain_text
    convert_del = convert_s = convert_sub = convert_sup = convert_a = _plain_text

    def convert_img(self, node: Any, _text: str, parent_tags: Any = ()) -> str:  # noqa: ARG002
        return node.attrs.get("alt", "") or ""

    def convert_hN(self, _level: int, _node: Any, text: str, parent_tags: Any = ()) -> str:  # noqa: ARG002, N802
        return f"\n\n{text.strip()}\n\n"

    def convert_hr(self, *_: Any, **__: Any) -> str:
        return "\n\n"

    def convert_pre(self, _node: Any, text: str, parent_tags: Any = ()) -> str:  # noqa: ARG002
        return f"\n\n{text}\n\n"

    convert_blockquote = convert_table = convert_pre

    def convert_tr(self, node: Any, _text: str, parent_tags: Any = ()) -> str:  # noqa: ARG002
        cells = node.find_all(["td", "th"], recursive=False)
        return "\t".join(" ".join(cell.get_text(" ").split()) for cell in cells) + "\n"


def render(html: str, options: Options) -> str:
    """Convert a page, or the elements that `options.css_selector` matches. Raises DocumentRefused."""
    soup = BeautifulSoup(html, "html.parser")
    for tag in soup(_SKIPPED):
        tag.decompose()
    for comment in soup.find_all(string=lambda text: isinstance(text, Comment)):
        comment.extract()
    roots = _select_roots(soup, options.css_selector)
    base = f"https://{options.hostname}/" if options.hostname else ""
    for tag in [tag for root in roots for tag in root.find_all(["a", "img"])]:
        _resolve_link(tag, "href" if tag.name == "a" else "src", base)
    return "\n\n".join(filter(None, (_convert(root, options) for root in roots)))


def _convert(root: Tag, options: Options) -> str:
    converter: MarkdownConverter
    if options.output_format == "text":
        converter = _PlainTextConverter(
            bullets="-", escape_asterisks=False, escape_underscores=False, escape_misc=False
        )
    else:
        converter = MarkdownConverter(heading_style=ATX, bullets="-", escape_misc=False, table_infer_header=True)
    text: str = converter.convert_soup(root)
    return _BLANK_LINES.sub("\n\n", text.replace("\xa0", " ")).strip()


def _select_roots(soup: BeautifulSoup, selector: str) -> list[Tag]:
    if not selector:
        return [soup.body or soup]
    try:
        with _processor_limit(_SELECTION_S):
            found = soup.select(selector)
    except (soupsieve.SelectorSyntaxError, NotImplementedError, ValueError) as error:
        raise DocumentRefused("'/html/cssSelector' must be a valid CSS selector") from error
    if not found:
        raise DocumentRefused("no element of the page matches '/html/cssSelector'")
    chosen = {id(tag) for tag in found}
    return [tag for tag in found if not any(id(parent) in chosen for parent in tag.parents)]


@contextlib.contextmanager
def _processor_limit(seconds: float) -> Iterator[None]:
    """Raise DocumentRefused in the block after `seconds` of CPU time."""

    def refuse(*_: object) -> None:
        raise DocumentRefused(f"'/html/cssSelector' takes longer than {seconds:g} s")

    previous = signal.signal(signal.SIGPROF, refuse)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)


def _resolve_link(tag: Tag, attribute: str, base: str) -> None:
    """Resolve a relative URL against `base` if given. Remove a URL that is invalid or whose scheme is not allowed."""
    address = str(tag.get(attribute) or "").strip()
    scheme = _SCHEME.match(address)
    if scheme is not None and scheme[1].lower() not in _LINK_SCHEMES:
        del tag[attribute]
    elif base and scheme is None and not address.startswith("#"):
        try:
            tag[attribute] = urljoin(base, address)
        except ValueError:
            del tag[attribute]
