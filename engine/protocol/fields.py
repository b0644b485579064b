"""Readers of single body fields: each returns a value of the right type and within bounds, or raises `BadInput`.

The text of `BadInput` names the field and the limit, never the value. These readers know no field by name.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any

import msgspec

_FIELD = re.compile(r"'/([^' ]+)'|^required properties at '/' are '([^']+)'")
_POINTER = re.compile(r"'(/[^']*)'")


class BadInput(ValueError):
    """The body cannot become a task. The text is shown to the client."""


def number(body: Mapping[str, Any], name: str, default: float, *, minimum: float, maximum: float) -> float:
    """Return a number within bounds, or `default`. Raises BadInput."""
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadInput(f"Type mismatch of '/{name}', expected 'number'")
    if not minimum <= value <= maximum:
        raise BadInput(f"'/{name}' must be >= {minimum:g} and <= {maximum:g}")
    return float(value)


def integer(body: Mapping[str, Any], name: str, default: Any, *, minimum: int, maximum: int) -> Any:
    """Return an integer within bounds, or `default`. Raises BadInput."""
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadInput(f"Type mismatch of '/{name}', expected 'integer'")
    if not minimum <= value <= maximum:
        raise BadInput(f"'/{name}' must be >= {minimum} and <= {maximum}")
    return value


def boolean(body: Mapping[str, Any], name: str, default: bool, *, within: str = "") -> bool:
    """Return a boolean, or `default`. `within` is the JSON pointer of the enclosing object. Raises BadInput."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise BadInput(f"Type mismatch of '{within}/{name}', expected 'boolean'")
    return value


def text(value: Any, pointer: str, *, max_characters: int) -> str:
    """Return a string of at most `max_characters`. Raises BadInput."""
    if not isinstance(value, str):
        raise BadInput(f"Type mismatch of '{pointer}', expected 'string'")
    if len(value) > max_characters:
        raise BadInput(f"'{pointer}' must have <= {max_characters} characters")
    return value


def mapping(value: Any, pointer: str) -> dict[str, Any]:
    """Return an object. Raises BadInput."""
    if not isinstance(value, dict):
        raise BadInput(f"Type mismatch of '{pointer}', expected 'object'")
    return value


def items(value: Any, pointer: str, *, maximum: int) -> list[Any]:
    """Return a list of at most `maximum` items; an empty one for null. Raises BadInput."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise BadInput(f"Type mismatch of '{pointer}', expected 'array'")
    if len(value) > maximum:
        raise BadInput(f"'{pointer}' must have <= {maximum} items")
    return value


def texts(body: Mapping[str, Any], name: str, *, maximum: int) -> tuple[str, ...]:
    """Return a string or a list of strings as a tuple of 1 to `maximum` non-empty strings. Raises BadInput."""
    value = body.get(name)
    if value is None:
        raise BadInput(f"required properties at '/' are '{name}'")
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        raise BadInput(f"Type mismatch of '/{name}', expected 'string' or an 'array' of them")
    if not 1 <= len(found) <= maximum:
        raise BadInput(f"'/{name}' must have 1 to {maximum} items")
    if not all(found):
        raise BadInput(f"'/{name}' must not hold an empty text")
    return tuple(found)


def media(body: Mapping[str, Any], name: str) -> bytes:
    """Return the bytes of a file in a field, as `media_bytes` reads them. Raises BadInput."""
    value = body.get(name)
    if value is None:
        raise BadInput(f"required properties at '/' are '{name}'")
    return media_bytes(value, f"/{name}")


def media_bytes(value: Any, pointer: str) -> bytes:
    """Return the bytes of a file, given as base64 (also as a `data:` URL) or as a list of integers from 0 to 255.

    Raises BadInput.
    """
    if isinstance(value, str) and is_web_url(value):
        raise BadInput(f"'{pointer}' must hold the file itself: URLs are not fetched; send base64 or a `data:` URL")
    try:
        if isinstance(value, str):
            text_of_file = value.partition(",")[2] if value.startswith("data:") else value
            found = base64.b64decode(text_of_file, validate=True)
        else:
            found = bytes(value)
    except (binascii.Error, ValueError, TypeError):
        raise BadInput(f"'{pointer}' must be base64, or an array of integers from 0 to 255") from None
    if not found:
        raise BadInput(f"'{pointer}' must not be empty")
    return found


def is_web_url(value: str) -> bool:
    """Return True for a URL of the web, valid or not."""
    return value[:8].lower().startswith(("http://", "https://"))


def check_whole_numbers(value: Any, pointer: str) -> None:
    """Raise BadInput if a value of bounded depth holds an integer that does not fit into 64 bits, which MessagePack
    cannot carry."""
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise BadInput(f"'{pointer}' must not hold whole numbers of more than 64 bits")
    for inner in _children(value):
        check_whole_numbers(inner, pointer)


def check_size(value: Any, pointer: str, *, max_bytes: int, max_depth: int) -> None:
    """Check the nesting and the JSON size of a value with arbitrary content. Raises BadInput."""
    if _is_deeper(value, max_depth):
        raise BadInput(f"'{pointer}' must not be nested deeper than {max_depth}")
    if len(msgspec.json.encode(value)) > max_bytes:
        raise BadInput(f"'{pointer}' must have <= {max_bytes} bytes as JSON")


def _is_deeper(value: Any, max_depth: int) -> bool:
    level = [value]
    for _ in range(max_depth):
        level = [inner for outer in level for inner in _children(outer)]
        if not level:
            return False
    return any(isinstance(value, (dict, list)) for value in level)


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def pointer_of(message: str) -> str | None:
    """Return the JSON pointer that an error message names (`/messages/0/role`); `/` is the body itself."""
    found = _POINTER.search(message)
    return found[1] if found else None


def field_of(message: str) -> str | None:
    """Return the field that an error message names, in OpenAI's spelling: `messages[0].role`."""
    found = _FIELD.search(message)
    return re.sub(r"/(\d+)", r"[\1]", found[1] or found[2]).replace("/", ".") if found else None
