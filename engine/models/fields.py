"""Typed reads from a `config.json`. Every error names the file and the field."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.models.config import UnsupportedModel

_MAX_JSON_BYTES = 4 * 1024 * 1024
_MAX_TOKEN_ID = 1 << 24


class Fields:
    """One JSON object. A field that is null counts as absent.

    The readers raise UnsupportedModel if a required field is missing or a value has the wrong type or is out of range.
    """

    def __init__(self, raw: Mapping[str, Any], where: str) -> None:
        self.raw = raw
        self.where = where

    def __contains__(self, name: str) -> bool:
        return self.raw.get(name) is not None

    def with_defaults(self, **defaults: Any) -> Fields:
        """Return a copy with `defaults` for missing fields. Fields that are null stay null."""
        return Fields({**defaults, **self.raw}, self.where)

    def inner(self, name: str) -> Fields:
        """Return the object in field `name`, or an empty one if it is absent."""
        value = self.raw[name] if name in self else {}
        if not isinstance(value, Mapping):
            raise self.refusal(name, "expected an object")
        return Fields(value, f"{self.where} {name}")

    def refusal(self, name: str, reason: str) -> UnsupportedModel:
        return UnsupportedModel(f"{self.where}: {name}={str(self.raw.get(name))[:200]}: {reason}")

    def whole(self, name: str, low: int, high: int, default: int | None = None) -> int:
        value = self._value(name, default)
        if type(value) is not int or not low <= value <= high:
            raise self.refusal(name, f"expected a whole number from {low} to {high}")
        return value

    def number(self, name: str, low: float, high: float, default: float | None = None) -> float:
        value = self._value(name, default)
        if type(value) not in (int, float) or not low <= value <= high:
            raise self.refusal(name, f"expected a number from {low:g} to {high:g}")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise self.refusal(name, "expected true or false")
        return value

    def word(self, name: str, default: str | None = None) -> str:
        value = self._value(name, default)
        if not isinstance(value, str):
            raise self.refusal(name, "expected a string")
        return value

    def numbers(self, name: str, count: int, low: float, high: float) -> tuple[float, ...]:
        """Return a list of `count` numbers."""
        return tuple(Fields({name: each}, self.where).number(name, low, high) for each in self._list(name, count))

    def words(self, name: str, count: int, allowed: tuple[str, ...]) -> tuple[str, ...]:
        """Return a list of `count` of the `allowed` words."""
        values = self._list(name, count)
        if not all(value in allowed for value in values):
            raise self.refusal(name, f"expected {count} of {', '.join(allowed)}")
        return tuple(values)

    def switches(self, name: str, count: int) -> tuple[bool, ...]:
        """Return a list of `count` zeros and ones as booleans."""
        values = self._list(name, count)
        if not all(value in (0, 1) for value in values):
            raise self.refusal(name, f"expected {count} of 0, 1")
        return tuple(map(bool, values))

    def indices(self, name: str, count: int) -> tuple[int, ...]:
        """Return a list of whole numbers below `count`, empty if the field is absent."""
        values = self._value(name, [])
        if not isinstance(values, list) or not all(type(value) is int and 0 <= value < count for value in values):
            raise self.refusal(name, f"expected a list of whole numbers below {count}")
        return tuple(values)

    def token_ids(self, name: str, vocab_size: int) -> tuple[int, ...]:
        """Return one id or a list of ids as a tuple, empty if the field is absent.

        Ids outside the vocabulary are left out: small models are published with the special tokens of large ones.
        """
        value = self.raw.get(name)
        values = [] if value is None else value if isinstance(value, list) else [value]
        if not all(type(token_id) is int and 0 <= token_id < _MAX_TOKEN_ID for token_id in values):
            raise self.refusal(name, "not a token id")
        return tuple(token_id for token_id in values if token_id < vocab_size)

    def _list(self, name: str, count: int) -> list[Any]:
        values = self._value(name, None)
        if not isinstance(values, list) or len(values) != count:
            raise self.refusal(name, f"expected a list of {count}")
        return values

    def _value(self, name: str, default: Any) -> Any:
        value = self.raw[name] if name in self else default
        if value is None:
            raise UnsupportedModel(f"{self.where}: {name} is missing")
        return value


def read_fields(path: Path) -> Fields:
    """Return the JSON object in a file. Raises UnsupportedModel."""
    try:
        size_bytes = path.stat().st_size
        if size_bytes > _MAX_JSON_BYTES:
            raise UnsupportedModel(f"{path.name}: {size_bytes} bytes is too large for a model config")
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise UnsupportedModel(f"{path.name} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise UnsupportedModel(f"{path.name} is not JSON") from None
    if not isinstance(value, dict):
        raise UnsupportedModel(f"{path.name} is not a JSON object")
    return Fields(value, path.name)
