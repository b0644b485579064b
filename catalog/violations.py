"""Error messages for schema violations, as defined by the wire contract: the field, never the value.

oneOf at '/' not met, 0 matches: required properties at '/' are 'prompt', required properties at '/' are 'messages'
Type mismatch of '/x', 'array' not in 'string'
'/top_k' must be <= 50
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from jsonschema_rs import ValidationError

from catalog.errors import SchemaViolation


def describe(errors: Iterable[ValidationError]) -> SchemaViolation:
    """Return one violation for a list of validation errors. `_rank` selects the error to report."""
    found = list(errors)
    first = min(found, key=_rank)
    same = [error for error in found if error.instance_path == first.instance_path]
    if first.kind.name == "required":
        names = [_detail(error, "property") for error in same if error.kind.name == "required"]
        return SchemaViolation(_required(first, names), _pointer(first))
    return SchemaViolation(_sentence(first), _pointer(first))


def missing(alternatives: list[str]) -> SchemaViolation:
    """Return the violation for a body that has none of the fields that select an alternative."""
    parts = [f"required properties at '/' are '{name}'" for name in alternatives]
    text = ", ".join(parts)
    return SchemaViolation(text if len(parts) == 1 else f"oneOf at '/' not met, 0 matches: {text}", "/")


def not_accepted(field: str) -> SchemaViolation:
    """Return the violation for a field that callers may not set."""
    return SchemaViolation(f"'/{field}' is not accepted from callers", f"/{field}")


def needs_capability(field: str, capability: str, code: int) -> SchemaViolation:
    """Return the violation for a field that the model does not support."""
    return SchemaViolation(f"'/{field}' is not supported: the model lacks {capability}", f"/{field}", code)


def _rank(error: ValidationError) -> tuple[bool, bool, int]:
    """Return a sort key: errors at the top level first, wrong values before missing ones, fewer allowed types first.

    Fewer types are more specific: a role may restrict the types of its content.
    """
    num_types = len(_detail(error, "types")) if error.kind.name == "type" else 0
    return len(error.instance_path) > 0, error.kind.name == "required", num_types


def _sentence(error: ValidationError) -> str:
    name = error.kind.name
    pointer = _pointer(error)
    if name in _BOUNDS:
        return f"'{pointer}' {_BOUNDS[name]} {_detail(error, 'limit')}" + _UNITS.get(name, "")
    render = _SENTENCES.get(name)
    return render(error, pointer) if render else f"'{pointer}' does not meet '{name}'"


_BOUNDS = {
    "maximum": "must be <=",
    "minimum": "must be >=",
    "maxItems": "must have <=",
    "minItems": "must have >=",
    "maxLength": "must have <=",
    "minLength": "must have >=",
}
_UNITS = {"maxItems": " items", "minItems": " items", "maxLength": " characters", "minLength": " characters"}


def _type_mismatch(error: ValidationError, pointer: str) -> str:
    return f"Type mismatch of '{pointer}', '{_type_of(error.instance)}' not in {_quoted(_detail(error, 'types'))}"


def _one_of(error: ValidationError, pointer: str) -> str:
    branches: list[list[ValidationError]] = getattr(error.kind, "context", [])
    constants = [
        _detail(branch[0], "expected_value") for branch in branches if branch and branch[0].kind.name == "const"
    ]
    if constants and len(constants) == len(branches):
        return f"'{pointer}' must be one of {_quoted(constants)}"
    reasons = [_sentence(branch[0]) for branch in branches if branch]
    return f"oneOf at '{pointer}' not met, 0 matches: {', '.join(reasons)}"


_SENTENCES: dict[str, Callable[[ValidationError, str], str]] = {
    "type": _type_mismatch,
    "oneOf": _one_of,
    "required": lambda error, _pointer: _required(error, [_detail(error, "property")]),
    "enum": lambda error, pointer: f"'{pointer}' must be one of {_quoted(_detail(error, 'options'))}",
    "const": lambda error, pointer: f"'{pointer}' must be {_quoted([_detail(error, 'expected_value')])}",
    "pattern": lambda _error, pointer: f"'{pointer}' does not have the required form",
    "maxBytes": lambda error, pointer: f"'{pointer}' must have <= {error.message} bytes",
    "maxJsonBytes": lambda error, pointer: f"'{pointer}' must have <= {error.message} bytes as JSON",
}


def _required(error: ValidationError, names: list[str]) -> str:
    return f"required properties at '{_pointer(error)}' are {_quoted(names)}"


def _pointer(error: ValidationError) -> str:
    """Return the JSON pointer of an error. It has only declared fields and indexes, never names chosen by callers."""
    return "/" + "/".join(str(part) for part in error.instance_path)


def _detail(error: ValidationError, name: str) -> Any:
    """Return an attribute of a validation error. The available names depend on the error's kind."""
    return getattr(error.kind, name)


def _quoted(values: Iterable[Any]) -> str:
    return ", ".join(f"'{'null' if value is None else value}'" for value in values)


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    for kind, name in ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (list, "array")):
        if isinstance(value, kind):
            return name
    return "object"
