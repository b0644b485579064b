"""What Hearth itself reads and changes in a caller's JSON schema before the parser library compiles it.

Numbers get bounds where a schema sets none, since JSON's grammar allows 1e999, which no program can hold: within the
bounds the library writes no exponents. Patterns are searched for words that a text must spell to match them. Knows the
places where a schema has schemas in it; nothing of tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

LARGEST_NUMBER = 10**15  # below 2^53, so that every reader of JSON has it exactly

_ONE = ("additionalProperties", "items", "not", "if", "then", "else", "contains", "propertyNames")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_NUMBER_LIMITS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "multipleOf")
_WORD = re.compile(r"(?<![\\])[A-Za-z0-9@_./: -]{2,}")
_MAX_WORDS = 32

_BOUNDED = {"type": "number", "minimum": -LARGEST_NUMBER, "maximum": LARGEST_NUMBER}
_ANY = {"$ref": "#/$defs/value"}
ANY_OBJECT: dict[str, Any] = {
    "type": "object",
    "additionalProperties": _ANY,
    "$defs": {
        "value": {
            "anyOf": [
                {"type": ["null", "boolean", "string"]},
                _BOUNDED,
                {"type": "array", "items": _ANY},
                {"type": "object", "additionalProperties": _ANY},
            ]
        }
    },
}
"""Any JSON object whose numbers are bounded."""


def with_finite_numbers(schema: dict[str, Any]) -> dict[str, Any]:
    """A copy in which every number that has a type and no bound on one side has one there."""
    copy = _map_subschemas(schema, with_finite_numbers)
    types = copy.get("type")
    is_number = types == "number" or (isinstance(types, list) and "number" in types)
    if is_number and "multipleOf" not in copy and not {"enum", "const"} & copy.keys():
        if not {"minimum", "exclusiveMinimum"} & copy.keys():
            copy["minimum"] = min(-LARGEST_NUMBER, *(_limits(copy)))
        if not {"maximum", "exclusiveMaximum"} & copy.keys():
            copy["maximum"] = max(LARGEST_NUMBER, *(_limits(copy)))
    return copy


def words_of_patterns(schema: dict[str, Any]) -> tuple[str, ...]:
    """Literal words of the patterns in `schema`, each at most once."""
    patterns = [pattern for part in _walk(schema) for pattern in _patterns(part)]
    return words_of_regex("\0".join(patterns))


def words_of_regex(pattern: str) -> tuple[str, ...]:
    """Runs of plain characters in a regular expression."""
    return tuple(dict.fromkeys(_WORD.findall(pattern)))[:_MAX_WORDS]


def depth_of(value: Any) -> int:
    """Levels of objects and lists in a parsed JSON value."""
    depth, level = 0, [value]
    while level := [item for item in level if isinstance(item, dict | list)]:
        depth += 1
        level = [inner for item in level for inner in (item.values() if isinstance(item, dict) else item)]
    return depth


def _limits(schema: dict[str, Any]) -> list[float]:
    """The numeric limits it sets itself, and 0."""
    values = [schema.get(key) for key in _NUMBER_LIMITS]
    return [0, *(value for value in values if isinstance(value, int | float) and not isinstance(value, bool))]


def _map_subschemas(schema: dict[str, Any], change: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """A copy of `schema` with `change` applied to each schema directly in it."""

    def changed(value: Any) -> Any:
        return change(value) if isinstance(value, dict) else value

    copy = dict(schema)
    for key, value in schema.items():
        if key in _ONE:
            copy[key] = changed(value)
        elif key in _LISTS and isinstance(value, list):
            copy[key] = [changed(item) for item in value]
        elif key in _MAPS and isinstance(value, dict):
            copy[key] = {name: changed(item) for name, item in value.items()}
    return copy


def _walk(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """`schema` and every schema in it."""
    found: list[dict[str, Any]] = []

    def note(part: dict[str, Any]) -> dict[str, Any]:
        found.append(part)
        return _map_subschemas(part, note)

    note(schema)
    yield from found


def _patterns(schema: dict[str, Any]) -> list[str]:
    own = schema.get("pattern")
    keys = schema.get("patternProperties")
    return [*([own] if isinstance(own, str) else []), *(keys if isinstance(keys, dict) else [])]
