"""How much a JSON text can need to be closed, at the most, known from its schema alone.

While more than that is left before the token limit, no token needs a second look. The number is of tokens, and holds
wherever the text stands within what the schema describes; `growth` says what is to be added for values that it leaves
open, where brackets may stand in brackets. A schema with parts that are not read here (patterns, `allOf`, what refers
to itself) has no such number: `hold.py` then watches the text with closes that were found.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from json.encoder import encode_basestring, encode_basestring_ascii
from typing import Any

from engine.structured.json_schema import referred

_KEYWORDS = {
    "type", "enum", "const", "$ref", "$anchor", "$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor",
    "$vocabulary", "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "properties", "patternProperties",
    "additionalProperties", "propertyNames", "required", "minProperties", "maxProperties", "dependencies",
    "dependentRequired", "dependentSchemas", "unevaluatedProperties", "items", "prefixItems", "additionalItems",
    "unevaluatedItems", "contains", "minContains", "maxContains", "minItems", "maxItems", "uniqueItems", "minLength",
    "maxLength", "pattern", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
    "contentEncoding", "contentMediaType", "contentSchema", "nullable", "discriminator", "id",
}  # fmt: skip  # what may narrow a value; all else is a note, to the parser library as well
_LIMITS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
_ESCAPE = 6  # what an escape in a string, or the first byte of a character, may still need
_ANY = (1, 16)  # a key or a string, its escape, a colon and a number; brackets are counted as they come
_FORMATS = {"date": 12, "time": 40, "date-time": 40, "uuid": 40, "ipv4": 20}
_MOST = 1 << 16

Count = Callable[[str], int]
Sizes = tuple[int, int]  # tokens: of a shortest text at the most, and to close any text of it that has begun


class _Unread(Exception):
    """The schema has a part that this file does not read."""


def bound_of(schema: dict[str, Any], count: Count) -> int | None:
    """Tokens that close any beginning of a text that meets `schema`; None where that cannot be told. `count` says how
    many tokens spell a text; a byte takes one at the most."""
    try:
        bound = _Bounds(schema, count).sizes(schema)[1]
    except _Unread:
        return None
    return bound if bound <= _MOST else None


def growth(text: bytes) -> int:
    """How many tokens more closing may need after this text, as part of a value that a schema leaves open."""
    return text.count(b"[") + text.count(b"{")


class _Bounds:
    """Sizes of the parts of `root`, each found once."""

    def __init__(self, root: dict[str, Any], count: Count) -> None:
        self._root = root
        self._count = count
        self._known: dict[int, Sizes | None] = {}  # by id, of parts that `root` keeps alive; None: being found

    def sizes(self, part: Any) -> Sizes:
        if part is True:
            return _ANY
        if not isinstance(part, dict):
            raise _Unread
        if id(part) not in self._known:
            self._known[id(part)] = None  # what leads back here has no end
            self._known[id(part)] = self._find(part)
        found = self._known[id(part)]
        if found is None:
            raise _Unread
        return found

    def _find(self, part: dict[str, Any]) -> Sizes:
        keys = part.keys() & _KEYWORDS
        if not keys:
            return _ANY
        if "enum" in keys or "const" in keys:
            return self._of_values(part, keys)
        if keys == {"$ref"}:
            return self.sizes(referred(part["$ref"], self._root) if isinstance(part["$ref"], str) else None)
        if len(keys) == 1 and keys & {"anyOf", "oneOf"}:
            return _either(map(self.sizes, _filled_list(part[keys.pop()])))
        types = part.get("type")
        return _either(
            self._of_type(part, keys - {"type"}, one) for one in (types if isinstance(types, list) else [types])
        )

    def _of_values(self, part: dict[str, Any], keys: set[str]) -> Sizes:
        values = _filled_list(part["enum"]) if "enum" in keys else [part["const"]]
        if keys - {"enum", "const", "type"} or any(isinstance(value, dict | list) for value in values):
            raise _Unread
        longest = max(len(json.dumps(value)) for value in values)  # which of them may stay is the library's word
        return longest, longest

    def _of_type(self, part: dict[str, Any], keys: set[str], one: Any) -> Sizes:
        """`keys` are those of `part` that have to be read."""
        if one == "object" and keys <= {"properties", "required", "additionalProperties"}:
            return self._of_object(part)
        if one == "array" and keys <= {"items", "minItems", "maxItems"}:
            least, inside = self.sizes(part.get("items", True))
            whole = 2 + _number(part.get("minItems", 0)) * (least + 1)
            return whole, whole + inside + 1
        if one == "string" and keys <= {"minLength", "maxLength", "format"}:
            if "format" in keys and part["format"] not in _FORMATS:
                raise _Unread
            whole = 2 + _number(part.get("minLength", 0)) + _FORMATS.get(part.get("format", ""), 0)
            return whole, whole + _ESCAPE
        if one in ("integer", "number") and keys <= _LIMITS:
            digits = max((len(json.dumps(part[key])) for key in keys), default=0) + 3
            return digits, digits
        if one in ("boolean", "null") and not keys:
            return len("false"), len("false")
        raise _Unread

    def _of_object(self, part: dict[str, Any]) -> Sizes:
        properties, required = part.get("properties", {}), part.get("required", [])
        others = part.get("additionalProperties", True)
        if not isinstance(properties, dict) or not isinstance(required, list):
            raise _Unread
        if not all(isinstance(key, str) for key in required):
            raise _Unread
        sizes = {key: self.sizes(value) for key, value in properties.items()}
        open_sizes = (0, 0) if others is False else self.sizes(others)
        whole = 2 + sum(self._key(key) + sizes.get(key, open_sizes)[0] for key in required)
        # in the middle of a key
        begun = [len(encode_basestring_ascii(key)) + 2 + inside for key, (_, inside) in sizes.items()]
        return whole, whole + max([*begun, 4 + _ESCAPE + open_sizes[1]])

    def _key(self, key: str) -> int:
        """Tokens of a key, from the comma before it to the colon."""
        return 3 + self._count(encode_basestring(key))


def _either(sizes: Iterable[Sizes]) -> Sizes:
    """Of texts that may be of one kind or another."""
    least, inside = zip(*sizes, strict=True)
    return max(least), max(inside)


def _filled_list(value: Any) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise _Unread
    return value


def _number(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST:
        raise _Unread
    return value
