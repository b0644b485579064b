"""The types that a tool's JSON schema allows for an argument, as far as they distinguish strings from other values.

Follows references within the schema. A schema without types allows any type.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.structured.json_schema import follow_reference

_TYPES = frozenset({"string", "number", "integer", "boolean", "null", "array", "object"})
_MAX_REFERENCES = 8
_KEYWORDS_OVER_ALL_ARGUMENTS = frozenset(
    "allOf anyOf oneOf $ref patternProperties minProperties maxProperties dependentRequired".split()
)


def properties_of(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schemas of the declared arguments, by name."""
    found = schema.get("properties")
    return found if isinstance(found, Mapping) else {}


def has_plain_properties(schema: Mapping[str, Any]) -> bool:
    """Return True if `schema` constrains the arguments together only by which exist and which are required."""
    return _KEYWORDS_OVER_ALL_ARGUMENTS.isdisjoint(schema)


def resolved(part: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return `part` with its reference within `root` followed; {} if `part` is no schema or refers elsewhere."""
    for _ in range(_MAX_REFERENCES):
        if not isinstance(part, Mapping):
            return {}
        if not isinstance(part.get("$ref"), str):
            return part
        part = follow_reference(part, root)
    return {}


def types_of(part: Any, root: Mapping[str, Any], *, is_branch: bool = False) -> frozenset[str] | None:
    """Return the types that a value may have; None if any type is allowed. Alternatives within alternatives are not
    followed, because references could multiply these without end."""
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
        if isinstance(branches, list) and branches and not is_branch:
            found = [types_of(branch, root, is_branch=True) for branch in branches]
            return None if None in found else frozenset().union(*(names for names in found if names))
    return None


def must_be_string(part: Any, root: Mapping[str, Any]) -> bool:
    """Return True if the value must be a string."""
    return types_of(part, root) == frozenset({"string"})


def may_be_string(part: Any, root: Mapping[str, Any]) -> bool:
    """Return True if the value may be a string."""
    types = types_of(part, root)
    return types is None or "string" in types
