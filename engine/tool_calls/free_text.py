"""Grammar rules (Lark) for free text that must not contain certain strings.

llguidance's lexer takes the longest match. Text that is followed by characters, not by a control token, therefore needs
a rule that ends at the first occurrence of these characters.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from engine.structured.lark import escape_slashes
from engine.tool_calls.family import quoted


def with_control_tokens(text: str, marks: Collection[str], controls: Mapping[str, int]) -> str:
    """Return text as the grammar spells it, with control tokens for those of `marks` that are control tokens."""
    parts = (part for part in _split(text, marks, controls) if part)
    return " ".join(f"<[{controls[part]}]>" if part in marks and part in controls else quoted(part) for part in parts)


def containing(mark: str) -> str:
    """Return the pattern of texts that contain `mark`."""
    return rf"/(?s:.*){escape_slashes(re.escape(mark))}(?s:.*)/"


def text_without(rule: str, unless: str, asides: Sequence[int] = ()) -> str:
    """Return `rule`: text, possibly empty, that does not match the pattern `unless`, with the control tokens `asides`
    in it."""
    terminal = rule.upper()
    lines = [f"{terminal}: /(?s:.+)/ & ~{unless}"]
    if not asides:
        return "\n".join([f"{rule}: {terminal}?", *lines]) + "\n"
    lines.append(f"{rule}_aside: <[{','.join(map(str, asides))}]>")
    return "\n".join([f"{rule}: {terminal}? ({rule}_aside {terminal}?)*", *lines]) + "\n"


def text_until(
    rule: str, mark: str, marks: Collection[str], controls: Mapping[str, int], asides: Sequence[int] = ()
) -> str:
    """Return `rule`: text, possibly empty, up to and including `mark`."""
    before, *rest = _split(mark, marks, controls)
    end = with_control_tokens("".join(rest), marks, controls)
    terminal = rule.upper()
    begin = f"({terminal}? {rule}_aside)* " if asides else ""
    lines = [f"{terminal}: /(?s:.+)/ & ~{containing(mark)}"] if asides or not before else []
    if asides:
        lines.append(f"{rule}_aside: <[{','.join(map(str, asides))}]>")
    if not before:
        return "\n".join([f"{rule}: {begin}{terminal}? {end}", *lines]) + "\n"
    lines.append(f"{rule}_part[suffix={quoted(before)}]: /(?s:.*)/")
    more = "+" if end else ""
    return "\n".join([f"{rule}: {begin}{rule}_part{more} {end}", *lines]) + "\n"


def _split(text: str, marks: Collection[str], controls: Mapping[str, int]) -> list[str]:
    """Split `text` before and after each control token. The part before the first may be empty."""
    known = sorted((mark for mark in marks if mark in controls), key=len, reverse=True)
    return re.split(f"({'|'.join(map(re.escape, known))})", text) if known else [text]
