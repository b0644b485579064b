"""JSON text that was cut short -> the value that it had come to: what was whole of it, its open brackets closed. Pure.

As clients that gather a streamed call read what they have until then: a text, a key or a word that is not whole is left
out, with the key that it belongs to.
"""

from __future__ import annotations

import re

_PARTS = re.compile(r'\s*(?:(?P<value>"(?:[^"\\]|\\.)*"|[^\s"{}\[\],:]+)|(?P<sign>[{}\[\],:]))', re.DOTALL)
_VALUE = re.compile(r'".*|-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?|true|false|null', re.DOTALL)
_CLOSING = {"{": "}", "[": "]"}


def as_far_as_whole(text: str) -> str:
    """JSON, for any beginning of an object's or a list's JSON text; "" where nothing has begun."""
    open_ones, is_key = "", False
    whole, to_close = 0, ""  # characters, and the brackets open behind them
    at = 0
    while (found := _PARTS.match(text, at)) is not None:
        at = found.end()
        sign = found["sign"]
        if sign in _CLOSING:
            open_ones, is_key = open_ones + sign, sign == "{"
        elif sign in ("}", "]"):
            open_ones, is_key = open_ones[:-1], False
        elif sign is not None:
            is_key = sign == "," and open_ones.endswith("{")
            continue
        elif is_key or _VALUE.fullmatch(found["value"]) is None:
            continue
        whole, to_close = at, open_ones
    return text[:whole] + "".join(_CLOSING[sign] for sign in reversed(to_close))
