"""The body guard: bytes from a client -> one JSON value that is safe to look at, or a Refusal. Pure.

Stricter than JSON: no repeated key, no number text over 20 characters, nothing deep, wide or long beyond the limits.
msgspec already refuses NaN, numbers out of range, bad UTF-8, lone surrogates and trailing text. What remains is
counted on the document's skeleton (the text without its strings), so a long prompt costs no more than a few copies.
Knows nothing of models or schemas.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from gateway.errors import Reason, Refusal

MAX_DEPTH = 64
MAX_MEMBERS = 200  # per object
MAX_BIASES = 300  # per object that says what to add to tokens' logits
MAX_ELEMENTS = 100_000  # values in the whole document
MAX_NUMBER_CHARS = 20

_BOM = b"\xef\xbb\xbf"
_LONG_NUMBER = re.compile(rb"[-+.0-9eE]{%d}" % (MAX_NUMBER_CHARS + 1))
_LONG_FIELD = re.compile(rb'"([A-Za-z_][A-Za-z0-9_]{0,63})"\s*:\s*[-+.0-9eE]{%d}' % (MAX_NUMBER_CHARS + 1))
_NOT_BRACKETS = re.compile(rb"[^\[\]{}]+")
_CONTAINERS = (dict, list)  # asked of every value: a union would be made anew each time
_decode = msgspec.json.Decoder().decode


def parse(body: bytes) -> dict[str, Any]:
    """The object in `body`. Raises Refusal: BODY_MISSING, BODY_INVALID, or INPUT_INVALID when it is no object."""
    if body.startswith(_BOM):
        body = body[len(_BOM) :]
    if not body or body.isspace():
        raise Refusal(Reason.BODY_MISSING)
    skeleton = _without_strings(body)
    num_objects = skeleton.count(b"{")
    num_arrays = skeleton.count(b"[")
    if skeleton.count(b",") + num_objects + num_arrays > MAX_ELEMENTS:
        raise _too_many()
    if num_objects + num_arrays > MAX_DEPTH and _depth(skeleton) > MAX_DEPTH:
        raise _invalid(f"nested deeper than {MAX_DEPTH}")
    if _LONG_NUMBER.search(skeleton):
        field = _LONG_FIELD.search(body)
        place = f" in '{field[1].decode()}'" if field else ""
        raise _invalid(f"a number of more than {MAX_NUMBER_CHARS} characters{place}")
    try:
        value = _decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise _invalid("the body is not valid JSON") from None
    _check_members(value, skeleton.count(b":"))
    if not isinstance(value, dict):
        raise Refusal(Reason.INPUT_INVALID, "Type mismatch of '/', expected 'object'")
    return value


def _without_strings(body: bytes) -> bytes:
    """The document without its strings; of text that is no JSON, anything (decoding refuses it anyway)."""
    if b"\\" in body:
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    if body.count(b'"') > 4 * MAX_ELEMENTS:  # a key and a string each: before a list of millions is made
        raise _too_many()
    return b"".join(body.split(b'"')[::2])


def _check_members(value: Any, num_members: int) -> None:
    """Every member of the text must be in the value: a key that was repeated is missing from it."""
    found = 0
    stack: list[Any] = [value]
    biases: list[Any] = []  # objects under the name of logit_bias
    while stack:
        inner = stack.pop()
        if isinstance(inner, dict):
            found += len(inner)
            if len(inner) > MAX_MEMBERS and any(inner is each for each in biases):
                if len(inner) > MAX_BIASES:
                    raise Refusal(Reason.INPUT_INVALID, f"'/logit_bias' must have <= {MAX_BIASES} properties")
            elif len(inner) > MAX_MEMBERS:
                raise _invalid(f"an object with more than {MAX_MEMBERS} members")
            if "logit_bias" in inner:
                biases.append(inner["logit_bias"])
            inner = inner.values()
        elif not isinstance(inner, list):
            continue
        stack.extend([item for item in inner if isinstance(item, _CONTAINERS)])
    if found != num_members:
        raise _invalid("a key is repeated")


def _depth(skeleton: bytes) -> int:
    """How deep brackets nest; both kinds count alike."""
    deepest = depth = 0
    for bracket in _NOT_BRACKETS.sub(b"", skeleton):
        depth += 1 if bracket in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _too_many() -> Refusal:
    return _invalid(f"more than {MAX_ELEMENTS} elements")


def _invalid(what: str) -> Refusal:
    return Refusal(Reason.BODY_INVALID, what)
