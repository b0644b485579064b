"""Fields of a body, read one at a time: the right kind and within bounds, or `BadInput`, which names the field.

Texts of `BadInput` name a field and a limit and never a value. Knows no field by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

_FIELD = re.compile(r"'/([^' ]+)'|^required properties at '/' are '([^']+)'")
_POINTER = re.compile(r"'(/[^']*)'")


class BadInput(ValueError):
    """A body that cannot become a task. The text is for the client."""


def number(body: Mapping[str, Any], name: str, default: float, *, minimum: float, maximum: float) -> float:
    """A number field within bounds. Raises BadInput."""
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadInput(f"Type mismatch of '/{name}', expected 'number'")
    if not minimum <= value <= maximum:
        raise BadInput(f"'/{name}' must be >= {minimum:g} and <= {maximum:g}")
    return float(value)


def integer(body: Mapping[str, Any], name: str, default: Any, *, minimum: int, maximum: int) -> Any:
    """A whole-number field within bounds, or `default`. Raises BadInput."""
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
    """A yes-or-no field; `within` is where in the body it stands. Raises BadInput."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise BadInput(f"Type mismatch of '{within}/{name}', expected 'boolean'")
    return value


def text(value: Any, pointer: str, *, max_characters: int) -> str:
    """A string that is not too long. Raises BadInput."""
    if not isinstance(value, str):
        raise BadInput(f"Type mismatch of '{pointer}', expected 'string'")
    if len(value) > max_characters:
        raise BadInput(f"'{pointer}' must have <= {max_characters} characters")
    return value


def mapping(value: Any, pointer: str) -> dict[str, Any]:
    """An object. Raises BadInput."""
    if not isinstance(value, dict):
        raise BadInput(f"Type mismatch of '{pointer}', expected 'object'")
    return value


def items(value: Any, pointer: str, *, maximum: int) -> list[Any]:
    """A list that is not too long; none for a null. Raises BadInput."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise BadInput(f"Type mismatch of '{pointer}', expected 'array'")
    if len(value) > maximum:
        raise BadInput(f"'{pointer}' must have <= {maximum} items")
    return value


def check_whole_numbers(value: Any, pointer: str) -> None:
    """Whole numbers in a value of bounded depth are no larger than a frame to a node carries. Raises BadInput."""
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise BadInput(f"'{pointer}' must not hold whole numbers of more than 64 bits")
    for inner in _inside(value):
        check_whole_numbers(inner, pointer)


def check_size(value: Any, pointer: str, *, max_bytes: int, max_depth: int) -> None:
    """Bounds of a value whose inside is the caller's own. Raises BadInput."""
    if _is_deeper(value, max_depth):
        raise BadInput(f"'{pointer}' must not be nested deeper than {max_depth}")
    if len(msgspec.json.encode(value)) > max_bytes:
        raise BadInput(f"'{pointer}' must have <= {max_bytes} bytes as JSON")


def _is_deeper(value: Any, max_depth: int) -> bool:
    level = [value]
    for _ in range(max_depth):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return False
    return any(isinstance(value, (dict, list)) for value in level)


def _inside(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def pointer_of(message: str) -> str | None:
    """The field that a message names, as a JSON pointer: /messages/0/role; / is the body itself."""
    found = _POINTER.search(message)
    return found[1] if found else None


def field_of(message: str) -> str | None:
    """The field that a message names as '/messages/0/role', as messages[0].role: OpenAI's spelling."""
    found = _FIELD.search(message)
    return re.sub(r"/(\d+)", r"[\1]", found[1] or found[2]).replace("/", ".") if found else None
