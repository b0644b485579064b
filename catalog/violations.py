"""Schema failures in the contract's dialect: one message, the field at fault, never the value.

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
    """One violation for everything that `errors` found: see `_rank`."""
    found = list(errors)
    first = min(found, key=_rank)
    same = [error for error in found if error.instance_path == first.instance_path]
    if first.kind.name == "required":
        names = [_fact(error, "property") for error in same if error.kind.name == "required"]
        return SchemaViolation(_required(first, names), _pointer(first))
    return SchemaViolation(_sentence(first), _pointer(first))


def missing(alternatives: list[str]) -> SchemaViolation:
    """None of the fields that each start a variant is there."""
    parts = [f"required properties at '/' are '{name}'" for name in alternatives]
    text = ", ".join(parts)
    return SchemaViolation(text if len(parts) == 1 else f"oneOf at '/' not met, 0 matches: {text}", "/")


def not_accepted(field: str) -> SchemaViolation:
    """A field that is the platform's to decide."""
    return SchemaViolation(f"'/{field}' is not accepted from callers", f"/{field}")


def needs_capability(field: str, capability: str, code: int) -> SchemaViolation:
    """A field that this model cannot honour."""
    return SchemaViolation(f"'/{field}' is not supported: the model lacks {capability}", f"/{field}", code)


def _rank(error: ValidationError) -> tuple[bool, bool, int]:
    """What is wrong at the top comes first, a wrong value before a missing one, the narrower demand before the wider
    one (a role may narrow what its content can be)."""
    num_types = len(_fact(error, "types")) if error.kind.name == "type" else 0
    return len(error.instance_path) > 0, error.kind.name == "required", num_types


def _sentence(error: ValidationError) -> str:
    name = error.kind.name
    pointer = _pointer(error)
    if name in _BOUNDS:
        return f"'{pointer}' {_BOUNDS[name]} {_fact(error, 'limit')}" + _UNITS.get(name, "")
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
    return f"Type mismatch of '{pointer}', '{_type_of(error.instance)}' not in {_quoted(_fact(error, 'types'))}"


def _one_of(error: ValidationError, pointer: str) -> str:
    branches: list[list[ValidationError]] = getattr(error.kind, "context", [])
    constants = [_fact(branch[0], "expected_value") for branch in branches if branch and branch[0].kind.name == "const"]
    if constants and len(constants) == len(branches):
        return f"'{pointer}' must be one of {_quoted(constants)}"
    reasons = [_sentence(branch[0]) for branch in branches if branch]
    return f"oneOf at '{pointer}' not met, 0 matches: {', '.join(reasons)}"


_SENTENCES: dict[str, Callable[[ValidationError, str], str]] = {
    "type": _type_mismatch,
    "oneOf": _one_of,
    "required": lambda error, _pointer: _required(error, [_fact(error, "property")]),
    "enum": lambda error, pointer: f"'{pointer}' must be one of {_quoted(_fact(error, 'options'))}",
    "const": lambda error, pointer: f"'{pointer}' must be {_quoted([_fact(error, 'expected_value')])}",
    "pattern": lambda _error, pointer: f"'{pointer}' does not have the required form",
    "maxBytes": lambda error, pointer: f"'{pointer}' must have <= {error.message} bytes",
    "maxJsonBytes": lambda error, pointer: f"'{pointer}' must have <= {error.message} bytes as JSON",
}


def _required(error: ValidationError, names: list[str]) -> str:
    return f"required properties at '{_pointer(error)}' are {_quoted(names)}"


def _pointer(error: ValidationError) -> str:
    """Only declared fields and positions can stand in it: no schema of ours looks inside fields that callers name."""
    return "/" + "/".join(str(part) for part in error.instance_path)


def _fact(error: ValidationError, name: str) -> Any:
    """What the library says about a failure; which names there are depends on the kind."""
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
