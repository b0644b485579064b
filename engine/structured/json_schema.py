"""Changes to a caller's JSON schema before llguidance compiles it.

- Unbounded numbers get bounds: JSON's grammar allows 1e999, which no program can represent. Within bounds, llguidance
  writes no exponents.
- `propertyNames` becomes `properties` or `patternProperties`, and unknown `format`s that constrain nothing are removed,
  because llguidance supports neither.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

LARGEST_NUMBER = 10**15  # below 2^53, so that every JSON reader represents integers exactly

_SCHEMA_KEYWORDS = ("additionalProperties", "items", "not", "if", "then", "else", "contains", "propertyNames")
_SCHEMA_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SCHEMA_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_NUMBER_LIMITS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "multipleOf")

_LOOK_AROUND = re.compile(r"\(\?<?[=!]")
# Formats with which Pydantic annotates types of its own whose text may be anything.
_UNCONSTRAINED_FORMATS = {"password", "binary", "path", "file-path", "directory-path"}
_FORMATS = {
    "date-time", "time", "date", "duration", "email", "idn-email", "hostname", "idn-hostname", "ipv4", "ipv6", "uri",
    "uri-reference", "iri", "iri-reference", "uuid", "uri-template", "json-pointer", "relative-json-pointer", "regex",
}  # fmt: skip  # those of JSON Schema

_BOUNDED_NUMBER = {"type": "number", "minimum": -LARGEST_NUMBER, "maximum": LARGEST_NUMBER}
_ANY_VALUE = {"$ref": "#/$defs/value"}
ANY_OBJECT: dict[str, Any] = {
    "type": "object",
    "additionalProperties": _ANY_VALUE,
    "$defs": {
        "value": {
            "anyOf": [
                {"type": ["null", "boolean", "string"]},
                _BOUNDED_NUMBER,
                {"type": "array", "items": _ANY_VALUE},
                {"type": "object", "additionalProperties": _ANY_VALUE},
            ]
        }
    },
}
"""Any JSON object whose numbers are bounded."""


def adapt_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of `schema` with all changes of this module."""
    return _with_finite_numbers(_adapt(schema))


def _adapt(schema: dict[str, Any]) -> dict[str, Any]:
    copy = map_subschemas(schema, _adapt)
    _adapt_string(copy)
    if isinstance(copy.get("propertyNames"), dict):
        _replace_property_names(copy, copy["propertyNames"])
    return copy


def _adapt_string(schema: dict[str, Any]) -> None:
    """Drop formats that llguidance does not know and that need no enforcing, and patterns implied by a format."""
    name = schema.get("format")
    if not isinstance(name, str):
        return
    if name in _UNCONSTRAINED_FORMATS or (name not in _FORMATS and _has_pattern(schema)):
        del schema["format"]  # zod names formats of its own beside the pattern that defines them
    elif name in _FORMATS and _LOOK_AROUND.search(str(schema.get("pattern", ""))):
        del schema["pattern"]  # zod adds patterns with look-ahead to `email` and `duration`; the format is enforced


def _has_pattern(schema: dict[str, Any]) -> bool:
    parts = schema.get("allOf")
    return any(
        isinstance(part, dict) and isinstance(part.get("pattern"), str)
        for part in (schema, *(parts if isinstance(parts, list) else ()))
    )


def _replace_property_names(schema: dict[str, Any], names: dict[str, Any]) -> None:
    """Express `propertyNames` by other keywords. Leaves it, for llguidance to refuse, where that is not possible."""
    keywords = names.keys() - {"type", "title", "description"}
    if names.get("type", "string") != "string" or (keywords and {"properties", "patternProperties"} & schema.keys()):
        return
    value = schema.get("additionalProperties", True)
    value = {} if value is True else value
    if keywords == {"enum"} and isinstance(names["enum"], list) and all(isinstance(n, str) for n in names["enum"]):
        schema["properties"] = dict.fromkeys(names["enum"], value)
    elif keywords == {"pattern"} and isinstance(names["pattern"], str):
        schema["patternProperties"] = {names["pattern"]: value}
    elif keywords:
        return
    if keywords:
        schema["additionalProperties"] = False
    del schema["propertyNames"]


def follow_reference(part: Mapping[str, Any], root: Mapping[str, Any]) -> Any:
    """Return the value that the `$ref` of `part` points to within `root`; None if there is none."""
    pointer = part["$ref"].removeprefix("#")
    if pointer and not pointer.startswith("/"):
        return None
    value: Any = root
    for name in pointer.split("/")[1:]:
        value = value.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(value, Mapping) else None
    return value


def _with_finite_numbers(schema: dict[str, Any]) -> dict[str, Any]:
    copy = map_subschemas(schema, _with_finite_numbers)
    types = copy.get("type")
    is_number = types == "number" or (isinstance(types, list) and "number" in types)
    if is_number and not {"multipleOf", "enum", "const"} & copy.keys():
        limits = [0, *(copy[key] for key in _NUMBER_LIMITS if type(copy.get(key)) in (int, float))]
        if not {"minimum", "exclusiveMinimum"} & copy.keys():
            copy["minimum"] = min(-LARGEST_NUMBER, *limits)
        if not {"maximum", "exclusiveMaximum"} & copy.keys():
            copy["maximum"] = max(LARGEST_NUMBER, *limits)
    return copy


def depth_of(value: Any) -> int:
    """Return the levels of objects and lists in a parsed JSON value."""
    depth, level = 0, [value]
    while level := [item for item in level if isinstance(item, dict | list)]:
        depth += 1
        level = [inner for item in level for inner in (item.values() if isinstance(item, dict) else item)]
    return depth


def map_subschemas(schema: dict[str, Any], change: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """Return a copy of `schema` with `change` applied to each schema directly within it."""

    def changed(value: Any) -> Any:
        return change(value) if isinstance(value, dict) else value

    copy = dict(schema)
    for key, value in schema.items():
        if key in _SCHEMA_KEYWORDS:
            copy[key] = changed(value)
        elif key in _SCHEMA_LISTS and isinstance(value, list):
            copy[key] = [changed(item) for item in value]
        elif key in _SCHEMA_MAPS and isinstance(value, dict):
            copy[key] = {name: changed(item) for name, item in value.items()}
    return copy
