"""Parse a JSON body with limits on depth, size and number length. Pure.

Stricter than JSON: repeated keys and numbers of more than 20 characters are rejected. msgspec already rejects NaN,
numbers out of range, invalid UTF-8, lone surrogates and trailing text. The limits are counted on the document without
its strings, so a long prompt costs only a few copies.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from gateway.errors import Reason, Refusal

MAX_DEPTH = 64
MAX_MEMBERS = 200  # per object
MAX_BIASES = 300  # per `logit_bias` object
MAX_ELEMENTS = 100_000  # in the whole document
MAX_NUMBER_CHARS = 20

_BOM = b"\xef\xbb\xbf"
_LONG_NUMBER = re.compile(rb"[-+.0-9eE]{%d}" % (MAX_NUMBER_CHARS + 1))
_LONG_FIELD = re.compile(rb'"([A-Za-z_][A-Za-z0-9_]{0,63})"\s*:\s*[-+.0-9eE]{%d}' % (MAX_NUMBER_CHARS + 1))
_NOT_BRACKETS = re.compile(rb"[^\[\]{}]+")
_AS_SQUARE = bytes.maketrans(b"{}", b"[]")
_CONTAINERS = (dict, list)  # a constant tuple, because a union type would be created for every value
_decode = msgspec.json.Decoder().decode


def parse(body: bytes) -> dict[str, Any]:
    """Return the object in `body`.

    Raises Refusal: BODY_MISSING, BODY_INVALID, or INPUT_INVALID if the body is not an object.
    """
    if body.startswith(_BOM):
        body = body[len(_BOM) :]
    if not body or body.isspace():
        raise Refusal(Reason.BODY_MISSING)
    skeleton = _without_strings(body)
    num_objects = skeleton.count(b"{")
    num_arrays = skeleton.count(b"[")
    if skeleton.count(b",") + num_objects + num_arrays > MAX_ELEMENTS:
        raise _too_many()
    if num_objects + num_arrays > MAX_DEPTH and _is_too_deep(skeleton):
        raise _invalid(f"nested deeper than {MAX_DEPTH}")
    if _LONG_NUMBER.search(skeleton):
        field = _LONG_FIELD.search(body)
        location = f" in '{field[1].decode()}'" if field else ""
        raise _invalid(f"a number of more than {MAX_NUMBER_CHARS} characters{location}")
    try:
        value = _decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise _invalid("the body is not valid JSON") from None
    _check_members(value, skeleton.count(b":"))
    if not isinstance(value, dict):
        raise Refusal(Reason.INPUT_INVALID, "Type mismatch of '/', expected 'object'")
    return value


def _without_strings(body: bytes) -> bytes:
    """Return the document without its strings. For invalid JSON the result is arbitrary; decoding rejects it later."""
    if b"\\" in body:
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    if body.count(b'"') > 4 * MAX_ELEMENTS:  # two strings per element: avoids splitting into millions of pieces
        raise _too_many()
    return b"".join(body.split(b'"')[::2])


def _check_members(value: Any, num_members: int) -> None:
    """Check the size of every object, and compare the number of members with the text: fewer members in the value mean
    that a key was repeated. Raises Refusal."""
    found = 0
    stack: list[Any] = [value]
    biases: list[Any] = []  # values of `logit_bias` members
    while stack:
        inner = stack.pop()
        if isinstance(inner, dict):
            found += len(inner)
            if len(inner) > MAX_MEMBERS:
                _check_large(inner, is_bias=any(inner is each for each in biases))
            if "logit_bias" in inner:
                biases.append(inner["logit_bias"])
            inner = inner.values()
        elif not isinstance(inner, list):
            continue
        stack.extend([item for item in inner if isinstance(item, _CONTAINERS)])
    if found != num_members:
        raise _invalid("a key is repeated")


def _check_large(members: dict[str, Any], *, is_bias: bool) -> None:
    """Raise Refusal unless an object with more than MAX_MEMBERS members is a `logit_bias` within its limit."""
    if not is_bias:
        raise _invalid(f"an object with more than {MAX_MEMBERS} members")
    if len(members) > MAX_BIASES:
        raise Refusal(Reason.INPUT_INVALID, f"'/logit_bias' must have <= {MAX_BIASES} properties")


def _is_too_deep(skeleton: bytes) -> bool:
    """Return True if arrays and objects are nested deeper than MAX_DEPTH."""
    brackets = _NOT_BRACKETS.sub(b"", skeleton).translate(_AS_SQUARE)
    for _ in range(MAX_DEPTH):  # each round removes the innermost level
        brackets = brackets.replace(b"[]", b"")
    return b"[]" in brackets


def _too_many() -> Refusal:
    return _invalid(f"more than {MAX_ELEMENTS} elements")


def _invalid(detail: str) -> Refusal:
    return Refusal(Reason.BODY_INVALID, detail)
