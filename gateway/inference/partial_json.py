"""Repair of JSON text that was cut off: keep the complete members and close the open brackets. Pure.

Clients that accumulate a streamed tool call read the same value. A string, key or literal that is not complete is
dropped, together with its key.
"""

from __future__ import annotations

import re

_PARTS = re.compile(r'\s*(?:(?P<value>"(?:[^"\\]|\\.)*"|[^\s"{}\[\],:]+)|(?P<sign>[{}\[\],:]))', re.DOTALL)
_VALUE = re.compile(r'".*|-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?|true|false|null', re.DOTALL)
_CLOSING = {"{": "}", "[": "]"}


def close_partial_json(text: str) -> str:
    """Return valid JSON for any prefix of the JSON text of an object or a list; "" if nothing has begun."""
    open_brackets, is_key = "", False
    complete_length, brackets_there = 0, ""  # the longest usable prefix, and the brackets open at its end
    at = 0
    while (found := _PARTS.match(text, at)) is not None:
        at = found.end()
        match found["sign"]:
            case "{" | "[" as sign:
                open_brackets, is_key = open_brackets + sign, sign == "{"
            case "}" | "]":
                open_brackets, is_key = open_brackets[:-1], False
            case "," | ":" as sign:
                is_key = sign == "," and open_brackets.endswith("{")
                continue
            case _ if is_key or _VALUE.fullmatch(found["value"]) is None:
                continue
        complete_length, brackets_there = at, open_brackets
    return text[:complete_length] + "".join(_CLOSING[sign] for sign in reversed(brackets_there))
