"""Convert decoded JSON or query parameters to a msgspec Struct, with errors that name the field.

The error messages are derived from the Struct's own types, so a field's rule is declared once. Messages never contain
the client's value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, inspect

_T = TypeVar("_T", bound=Struct)

_LOCATION = re.compile(r" - at `(?:key` in `)?\$(.*)`$", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `([^`]+)`")
_STEP = re.compile(r"\[(\d+|\.\.\.)\]")


class FieldError(ValueError):
    """A field that does not match its declaration.

    `path` is the field's location, such as `policies/0/effect`; "" is the object itself. `expected` describes what the
    declaration requires, such as `a whole number from 1 to 100`.
    """

    def __init__(self, path: str, expected: str, *, is_missing: bool = False) -> None:
        super().__init__(f"{path} is required" if is_missing else f"{path} must be {expected}")
        self.path = path
        self.expected = expected
        self.is_missing = is_missing


def convert(values: Mapping[str, Any], type_: type[_T], *, from_text: bool = False) -> _T:
    """Return `values` as a Struct; unknown fields are ignored unless the Struct forbids them.

    With `from_text`, numbers and booleans may be given as text. Raises FieldError.
    """
    try:
        return msgspec.convert(values, type_, strict=not from_text)
    except msgspec.ValidationError as error:
        raise _field_error(str(error), type_) from None


def _field_error(message: str, type_: type[Struct]) -> FieldError:
    location = _LOCATION.search(message)
    path, found = _follow(location[1] if location else "", inspect.type_info(type_))
    missing = _MISSING.match(message)
    if missing is not None:
        path.append(missing[1])
        return FieldError("/".join(path), "present", is_missing=True)
    return FieldError("/".join(path), describe(found))


def _follow(location: str, declared: inspect.Type) -> tuple[list[str], inspect.Type]:
    """Return the field names and indexes in msgspec's `location`, and the type declared there.

    Stops at the container when the location is one of the values of a mapping, because its key is the client's text.
    """
    path: list[str] = []
    while location:
        declared = _without_null(declared)
        if isinstance(declared, inspect.StructType) and location.startswith("."):
            names = [field.encode_name for field in declared.fields]
            # Field names may contain dots; the longest one that fits is meant.
            name = max((name for name in names if location.startswith(f".{name}")), key=len)
            declared = next(field.type for field in declared.fields if field.encode_name == name)
            path.append(name)
            location = location[len(name) + 1 :]
            continue
        step = _STEP.match(location)
        if step is None or not isinstance(declared, inspect.ListType):
            break
        path.append(step[1])
        declared, location = declared.item_type, location[step.end() :]
    return path, declared


def _without_null(found: inspect.Type) -> inspect.Type:
    if isinstance(found, inspect.Metadata):
        return _without_null(found.type)
    if isinstance(found, inspect.UnionType):
        others = [each for each in found.types if not isinstance(each, inspect.NoneType)]
        return _without_null(others[0]) if len(others) == 1 else found
    return found


def describe(found: inspect.Type) -> str:
    """Return what a type requires, to be read after "must be"."""
    match found:
        case inspect.Metadata():
            return describe(found.type)
        case inspect.UnionType():
            return " or ".join(describe(each) for each in found.types)
        case inspect.NoneType():
            return "null"
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType() | inspect.FloatType():
            return ("a whole number" if isinstance(found, inspect.IntType) else "a number") + _bounds(found)
        case inspect.StrType():
            text = "a string" + _lengths(found.min_length, found.max_length, "characters")
            return f"{text} matching {found.pattern}" if found.pattern else text
        case inspect.BytesType():
            return "a string in base64"
        case inspect.LiteralType():
            *first, last = (str(value) for value in found.values)
            return f"{', '.join(first)} or {last}" if first else last
        case inspect.DateTimeType():
            return "an RFC 3339 time with a time zone, such as 2027-01-01T00:00:00Z"
        case inspect.ListType():
            return "a list" + _lengths(found.min_length, found.max_length, "items")
        case inspect.DictType():
            members = _lengths(found.min_length, found.max_length, "members")
            return f"an object{members} with the value {describe(found.value_type)}"
        case inspect.StructType() if found.forbid_unknown_fields:
            return f"an object with only {' and '.join(field.encode_name for field in found.fields)}"
        case _:
            return "an object"


def _bounds(found: inspect.IntType | inspect.FloatType) -> str:
    if found.ge is not None and found.le is not None:
        return f" from {found.ge} to {found.le}"
    lower = f" greater than {found.gt}" if found.gt is not None else f" of at least {found.ge}"
    upper = f" of at most {found.le}"
    return (lower if (found.gt, found.ge) != (None, None) else "") + (upper if found.le is not None else "")


def _lengths(least: int | None, most: int | None, unit: str) -> str:
    if least and most is not None:
        return f" of {least} to {most} {unit}"
    return f" of at most {most} {unit}" if most is not None else f" of at least {least} {unit}" if least else ""
