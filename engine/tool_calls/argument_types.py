"""What a tool's schema says of one argument, as far as it decides between a text and anything else. Pure.

References within the schema are followed. A schema that says nothing of types may mean any.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TYPES = frozenset({"string", "number", "integer", "boolean", "null", "array", "object"})
_MAX_LEVELS = 8
_BEYOND_PROPERTIES = (
    "allOf",
    "anyOf",
    "oneOf",
    "$ref",
    "patternProperties",
    "minProperties",
    "maxProperties",
    "dependentRequired",
)


def properties_of(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schemas of the arguments that `schema` declares."""
    found = schema.get("properties")
    return found if isinstance(found, Mapping) else {}


def has_plain_properties(schema: Mapping[str, Any]) -> bool:
    """Whether what `schema` asks of the arguments together is only which there are and which there must be."""
    return not any(key in schema for key in _BEYOND_PROPERTIES)


def resolved(part: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """`part`, or what it refers to within `root`; {} for what is no schema, and for a reference to elsewhere."""
    for _ in range(_MAX_LEVELS):
        if not isinstance(part, Mapping):
            return {}
        reference = part.get("$ref")
        if not isinstance(reference, str):
            return part
        if reference != "#" and not reference.startswith("#/"):
            return {}
        value: Any = root
        for name in reference[2:].split("/") if reference != "#" else ():
            value = value.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(value, Mapping) else None
        part = value
    return {}


def types_of(part: Any, root: Mapping[str, Any], level: int = 0) -> frozenset[str] | None:
    """The types that a value may have; None where any is allowed."""
    schema = resolved(part, root)
    types = schema.get("type")
    if isinstance(types, str):
        return frozenset({types}) & _TYPES or None
    if isinstance(types, list):
        return frozenset(name for name in types if isinstance(name, str)) & _TYPES or None
    choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(choices, list) and choices:
        return frozenset({"string"}) if all(isinstance(choice, str) for choice in choices) else None
    for key in ("anyOf", "oneOf"):
        branches = schema.get(key)
        if isinstance(branches, list) and branches and level < _MAX_LEVELS:
            found = [types_of(branch, root, level + 1) for branch in branches]
            return None if None in found else frozenset().union(*(names for names in found if names))
    return None


def is_only_text(part: Any, root: Mapping[str, Any]) -> bool:
    """Whether a value can be nothing but a text."""
    return types_of(part, root) == frozenset({"string"})


def may_be_text(part: Any, root: Mapping[str, Any]) -> bool:
    """Whether a value may be a text, among others."""
    types = types_of(part, root)
    return types is None or "string" in types
