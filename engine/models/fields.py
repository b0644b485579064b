"""Typed reads from a `config.json`; every error names the file and the field.

Never runs code that a checkpoint names. Knows JSON, not models.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.models.config import UnsupportedModel

_MAX_JSON_BYTES = 4 * 1024 * 1024
_MAX_TOKEN_ID = 1 << 24


class Fields:
    """One JSON object. A field that is null counts as absent."""

    def __init__(self, raw: Mapping[str, Any], where: str) -> None:
        self.raw = raw
        self.where = where

    def __contains__(self, name: str) -> bool:
        return self.raw.get(name) is not None

    def with_defaults(self, **defaults: Any) -> Fields:
        """The same with `defaults` where a field is absent; one that is null stays so."""
        return Fields({**defaults, **self.raw}, self.where)

    def inner(self, name: str) -> Fields:
        """The object in field `name`; an empty one if it is absent."""
        value = self.raw.get(name)
        if value is None:
            value = {}
        if not isinstance(value, Mapping):
            raise self.refusal(name, "expected an object")
        return Fields(value, f"{self.where} {name}")

    def refusal(self, name: str, reason: str) -> UnsupportedModel:
        return UnsupportedModel(f"{self.where}: {name}={str(self.raw.get(name))[:200]}: {reason}")

    def whole(self, name: str, low: int, high: int, default: int | None = None) -> int:
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.refusal(name, f"expected a whole number from {low} to {high}")
        return value

    def number(self, name: str, low: float, high: float, default: float | None = None) -> float:
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
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
        """A list of `count` numbers."""
        values = self._list(name, count)
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
                raise self.refusal(name, f"expected {count} numbers from {low:g} to {high:g}")
        return tuple(float(value) for value in values)

    def words(self, name: str, count: int, allowed: tuple[str, ...]) -> tuple[str, ...]:
        """A list of `count` of the `allowed` words."""
        values = self._list(name, count)
        if not all(value in allowed for value in values):
            raise self.refusal(name, f"expected {count} of {', '.join(allowed)}")
        return tuple(values)

    def switches(self, name: str, count: int) -> tuple[bool, ...]:
        """A list of `count` zeros and ones."""
        values = self._list(name, count)
        if not all(value in (0, 1) for value in values):
            raise self.refusal(name, f"expected {count} of 0, 1")
        return tuple(bool(value) for value in values)

    def indices(self, name: str, count: int) -> tuple[int, ...]:
        """A list of whole numbers below `count`; none if it is absent."""
        values = self._value(name, [])
        is_plain = isinstance(values, list) and all(type(value) is int and 0 <= value < count for value in values)
        if not is_plain:
            raise self.refusal(name, f"expected a list of whole numbers below {count}")
        return tuple(values)

    def token_ids(self, name: str, vocab_size: int) -> tuple[int, ...]:
        """One id, a list of ids, or none at all. Ids beyond the vocabulary are left out, since they are never drawn:
        small models are published with the special tokens of the large ones."""
        value = self.raw.get(name)
        values = [] if value is None else value if isinstance(value, list) else [value]
        for token_id in values:
            if isinstance(token_id, bool) or not isinstance(token_id, int) or not 0 <= token_id < _MAX_TOKEN_ID:
                raise self.refusal(name, "not a token id")
        return tuple(token_id for token_id in values if token_id < vocab_size)

    def _list(self, name: str, count: int) -> list[Any]:
        values = self._value(name, None)
        if not isinstance(values, list) or len(values) != count:
            raise self.refusal(name, f"expected a list of {count}")
        return values

    def _value(self, name: str, default: Any) -> Any:
        value = self.raw.get(name)
        if value is not None:
            return value
        if default is None:
            raise UnsupportedModel(f"{self.where}: {name} is missing")
        return default


def read_fields(path: Path) -> Fields:
    """The JSON object in the file. Raises UnsupportedModel."""
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
