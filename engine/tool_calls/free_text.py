"""Grammar rules for text that is free but for what it may spell (Lark, in llguidance's dialect).

The library's lexer takes the longest match. So a text that is followed by characters, rather than by a control token,
has to be a rule that ends where they first stand.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from engine.structured.lark import escape_slashes
from engine.tool_calls.family import quoted


def spelled(text: str, marks: Collection[str], controls: Mapping[str, int]) -> str:
    """Characters as a grammar spells them, with control tokens where they are some of `marks`."""
    parts = (part for part in _split(text, marks, controls) if part)
    return " ".join(f"<[{controls[part]}]>" if part in marks and part in controls else quoted(part) for part in parts)


def holding(mark: str) -> str:
    """The pattern of a text that spells `mark`."""
    return rf"/(?s:.*){escape_slashes(re.escape(mark))}(?s:.*)/"


def text_without(rule: str, unless: str, asides: Sequence[int] = ()) -> str:
    """`rule`: any text, or none, that does not match the pattern `unless`, with control tokens `asides` in it."""
    terminal = rule.upper()
    lines = [f"{terminal}: /(?s:.+)/ & ~{unless}"]
    if not asides:
        return "\n".join([f"{rule}: {terminal}?", *lines]) + "\n"
    lines.append(f"{rule}_aside: <[{','.join(map(str, asides))}]>")
    return "\n".join([f"{rule}: {terminal}? ({rule}_aside {terminal}?)*", *lines]) + "\n"


def text_until(
    rule: str, mark: str, marks: Collection[str], controls: Mapping[str, int], asides: Sequence[int] = ()
) -> str:
    """`rule`: any text, or none, up to and with `mark`, which is spelled as `spelled` spells it."""
    before, *rest = _split(mark, marks, controls)
    end = spelled("".join(rest), marks, controls)
    terminal = rule.upper()
    begin = f"({terminal}? {rule}_aside)* " if asides else ""
    lines = [f"{terminal}: /(?s:.+)/ & ~{holding(mark)}"] if asides or not before else []
    if asides:
        lines.append(f"{rule}_aside: <[{','.join(map(str, asides))}]>")
    if not before:
        return "\n".join([f"{rule}: {begin}{terminal}? {end}", *lines]) + "\n"
    lines.append(f"{rule}_part[suffix={quoted(before)}]: /(?s:.*)/")
    more = "+" if end else ""
    return "\n".join([f"{rule}: {begin}{rule}_part{more} {end}", *lines]) + "\n"


def _split(text: str, marks: Collection[str], controls: Mapping[str, int]) -> list[str]:
    """`text` cut before and behind each control token; what comes before the first may be empty."""
    known = sorted((mark for mark in marks if mark in controls), key=len, reverse=True)
    return re.split(f"({'|'.join(map(re.escape, known))})", text) if known else [text]
