"""Which branches of a schema's `oneOf` no value can meet two of: those may be said with `anyOf`, which the parser
library follows everywhere, while it sees for itself only that plain types and texts differ.

Branches are apart by the types they allow, by values they spell out, or by a member that both require and that is
apart, references within the schema followed. What cannot be told apart here stays as it is. Knows no patterns and no
limits.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

from engine.structured.json_schema import map_subschemas, referred

_TYPES = frozenset({"null", "boolean", "number", "string", "array", "object"})  # an integer is a number
_MAX_COMPARISONS = 1_000  # of a schema
_MAX_LEVELS = 4  # of references and members


def said_with_any_of(schema: dict[str, Any]) -> dict[str, Any]:
    """A copy in which `oneOf` is `anyOf` wherever that is known to mean the same."""
    return _Rewriter(schema).rewritten(schema)


class _Rewriter:
    """Of one schema, `root`; compares so often and then no more, since references can lead anywhere."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._num_left = _MAX_COMPARISONS

    def rewritten(self, schema: dict[str, Any]) -> dict[str, Any]:
        copy = map_subschemas(schema, self.rewritten)
        branches = copy.get("oneOf")
        if isinstance(branches, list) and branches and self._are_apart(branches, self._parts(schema)):
            del copy["oneOf"]
            if "anyOf" in copy:
                beside = copy.get("allOf", [])
                copy["allOf"] = [*(beside if isinstance(beside, list) else [beside]), {"anyOf": branches}]
            else:
                copy["anyOf"] = branches
        return copy

    def _are_apart(self, branches: list[Any], around: list[dict[str, Any]]) -> bool:
        """`around`: what a value must meet beside one of the branches."""
        if not all(isinstance(branch, dict) for branch in branches):
            return False
        pairs = itertools.combinations([[*around, *self._parts(branch)] for branch in branches], 2)
        return all(self._is_apart(one, other, _MAX_LEVELS) for one, other in pairs)

    def _is_apart(self, one: list[dict[str, Any]], other: list[dict[str, Any]], levels: int) -> bool:
        """Whether it is known that nothing meets all schemas of both."""
        self._num_left -= 1
        if self._num_left < 0:
            return False
        common = _types(one) & _types(other)
        if not common:
            return True
        values, theirs = _values(one), _values(other)
        if values is not None and theirs is not None:
            return not values & theirs
        if common != {"object"} or not levels:
            return False
        members, others = _required(one), _required(other)
        return any(
            self._is_apart(self._parts(member), self._parts(others[name]), levels - 1)
            for name, member in members.items()
            if isinstance(member, dict) and isinstance(others.get(name), dict)
        )

    def _parts(self, schema: dict[str, Any]) -> list[dict[str, Any]]:
        """Schemas that all must be met: itself, and what it refers to."""
        parts = [schema]
        while len(parts) <= _MAX_LEVELS and isinstance(parts[-1].get("$ref"), str):
            target = referred(parts[-1]["$ref"], self._root)
            if not isinstance(target, dict):
                break
            parts.append(target)
        return parts


def _types(parts: list[dict[str, Any]]) -> frozenset[str]:
    """Those that a value may have, at most."""
    allowed = _TYPES
    for part in parts:
        named = part.get("type")
        names = [named] if isinstance(named, str) else named if isinstance(named, list) else []
        if names and all(isinstance(name, str) for name in names):
            allowed &= {"number" if name == "integer" else name for name in names}
        spelled = _spelled(part)
        if spelled is not None:
            allowed &= {_type_of(value) for value in spelled}
    return allowed


def _values(parts: list[dict[str, Any]]) -> frozenset[str] | None:
    """Those that a value may be, written so that equal ones are equal; None where they are not spelled out."""
    allowed: frozenset[str] | None = None
    for part in parts:
        spelled = _spelled(part)
        if spelled is not None:
            written = frozenset(map(_written, spelled))
            allowed = written if allowed is None else allowed & written
    return allowed


def _required(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """The declared members that every value has; where parts declare one twice, the last."""
    members: dict[str, Any] = {}
    for part in parts:
        properties, names = part.get("properties"), part.get("required")
        if isinstance(properties, dict) and isinstance(names, list):
            members |= {name: properties[name] for name in names if isinstance(name, str) and name in properties}
    return members


def _spelled(part: dict[str, Any]) -> list[Any] | None:
    if "const" in part:
        return [part["const"]]
    values = part.get("enum")
    return values if isinstance(values, list) else None


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    names = ((int | float, "number"), (str, "string"), (list, "array"))
    return next((name for kind, name in names if isinstance(value, kind)), "object")


def _written(value: Any) -> str:
    """JSON's values are equal by what they are: 1 and 1.0 are, 1 and true are not."""
    return json.dumps(_with_whole_numbers(value), sort_keys=True)


def _with_whole_numbers(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_with_whole_numbers(each) for each in value]
    if isinstance(value, dict):
        return {name: _with_whole_numbers(each) for name, each in value.items()}
    return value
