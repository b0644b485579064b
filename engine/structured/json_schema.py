"""What Hearth itself reads and changes in a caller's JSON schema before the parser library compiles it.

Numbers get bounds where a schema sets none, since JSON's grammar allows 1e999, which no program can hold: within the
bounds the library writes no exponents. Patterns are searched for words that a text must spell to match them. Knows the
places where a schema has schemas in it; nothing of tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from engine.structured.look_ahead import in_parts, said_plainly

LARGEST_NUMBER = 10**15  # below 2^53, so that every reader of JSON has it exactly

_ONE = ("additionalProperties", "items", "not", "if", "then", "else", "contains", "propertyNames")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_NUMBER_LIMITS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "multipleOf")
_STRING_LIMITS = {
    "pattern",
    "patternProperties",
    "propertyNames",
    "maxLength",
    "format",
    "not",
    "$anchor",
    "$dynamicRef",
}
_REFERENCE = re.compile(r"#(/(\$defs|definitions|properties)/[^/]+)*")
_WORD = re.compile(r"(?<![\\])[A-Za-z0-9@_./: -]{2,}")
_NOT_SPELLED = re.compile(r"\{\d+(?:,\d*)?\}|\\[A-Za-z0-9]|\\(?=.)|(?<!\\)[\^$.*+?()\[\]|\0]", re.DOTALL)
_MAX_WORDS = 32
_MAX_SIGNS = 16
_MAX_LEVELS = 100  # of parts in parts, references followed
_MAX_CHARS = 4_000
_FORMAT_CHARS = 72  # of a UUID, the longest; it counts double, like all that is spelled a token a character

# What writers of schemas note beside a type of their own language whose texts may be any.
_FORMATS_OF_ANY_TEXT = {"password", "binary", "path", "file-path", "directory-path"}
_FORMATS = {
    "date-time", "time", "date", "duration", "email", "idn-email", "hostname", "idn-hostname", "ipv4", "ipv6", "uri",
    "uri-reference", "iri", "iri-reference", "uuid", "uri-template", "json-pointer", "relative-json-pointer", "regex",
}  # fmt: skip  # those of JSON Schema

_BOUNDED = {"type": "number", "minimum": -LARGEST_NUMBER, "maximum": LARGEST_NUMBER}
_ANY = {"$ref": "#/$defs/value"}
ANY_OBJECT: dict[str, Any] = {
    "type": "object",
    "additionalProperties": _ANY,
    "$defs": {
        "value": {
            "anyOf": [
                {"type": ["null", "boolean", "string"]},
                _BOUNDED,
                {"type": "array", "items": _ANY},
                {"type": "object", "additionalProperties": _ANY},
            ]
        }
    },
}
"""Any JSON object whose numbers are bounded."""


def with_finite_numbers(schema: dict[str, Any]) -> dict[str, Any]:
    """A copy in which every number that has a type and no bound on one side has one there."""
    copy = map_subschemas(schema, with_finite_numbers)
    types = copy.get("type")
    is_number = types == "number" or (isinstance(types, list) and "number" in types)
    if is_number and "multipleOf" not in copy and not {"enum", "const"} & copy.keys():
        if not {"minimum", "exclusiveMinimum"} & copy.keys():
            copy["minimum"] = min(-LARGEST_NUMBER, *(_limits(copy)))
        if not {"maximum", "exclusiveMaximum"} & copy.keys():
            copy["maximum"] = max(LARGEST_NUMBER, *(_limits(copy)))
    return copy


def in_plain_words(schema: dict[str, Any]) -> dict[str, Any]:
    """A copy that means the same in words that the parser library has: what a pattern looks ahead for becomes a pattern
    of its own or a part of it, what the names of an object's members must be is said of the members, and formats that
    say nothing, or name what a pattern beside them says, are left out."""
    copy = map_subschemas(schema, in_plain_words)
    form = copy.get("format")
    if isinstance(form, str) and (form in _FORMATS_OF_ANY_TEXT or (_has_pattern(copy) and form not in _FORMATS)):
        del copy["format"]
    if isinstance(copy.get("pattern"), str):
        ahead, copy["pattern"] = in_parts(copy["pattern"])
        if ahead:
            copy["allOf"] = [*_list(copy.get("allOf")), *({"pattern": pattern} for pattern in ahead)]
    if isinstance(copy.get("patternProperties"), dict):
        names = copy["patternProperties"]
        copy["patternProperties"] = {said_plainly(name): value for name, value in names.items()}
    if isinstance(copy.get("propertyNames"), dict):
        _tell_of_members(copy, _in_one_pattern(copy["propertyNames"], schema["propertyNames"]))
    return copy


def _has_pattern(schema: dict[str, Any]) -> bool:
    parts = [schema, *_list(schema.get("allOf"))]
    return any(isinstance(part, dict) and isinstance(part.get("pattern"), str) for part in parts)


def _in_one_pattern(names: dict[str, Any], asked: dict[str, Any]) -> dict[str, Any]:
    """`names`, which says in plain words what was `asked` of keys, with one pattern where that had one."""
    if not isinstance(asked.get("pattern"), str) or "allOf" in asked:
        return names
    return {key: value for key, value in names.items() if key != "allOf"} | {"pattern": said_plainly(asked["pattern"])}


def _tell_of_members(schema: dict[str, Any], names: dict[str, Any]) -> None:
    """Put what `names` says of an object's keys into `schema` in other words, where it can be; keys that are declared
    by themselves are not read."""
    said = names.keys() - {"type", "title", "description"}
    if names.get("type", "string") != "string" or (said and {"properties", "patternProperties"} & schema.keys()):
        return
    value = schema.get("additionalProperties", True)
    value = {} if value is True else value
    if said == {"enum"} and all(isinstance(name, str) for name in _list(names["enum"])):
        schema["properties"] = dict.fromkeys(_list(names["enum"]), value)
    elif said == {"pattern"} and isinstance(names["pattern"], str):
        schema["patternProperties"] = {names["pattern"]: value}
    elif said:
        return
    if said:
        schema["additionalProperties"] = False
    del schema["propertyNames"]


def patterns_in(schema: dict[str, Any]) -> tuple[str, ...]:
    """The patterns in `schema`, each once."""
    return tuple(dict.fromkeys(pattern for part in _walk(schema) for pattern in _patterns(part)))


def words_of_patterns(schema: dict[str, Any]) -> tuple[str, ...]:
    """Literal words of the patterns in `schema`, each at most once."""
    return words_of_regex("\0".join(patterns_in(schema)))


def words_of_regex(pattern: str) -> tuple[str, ...]:
    """Runs of plain characters in a regular expression, and then each of its characters by itself."""
    words = tuple(dict.fromkeys(_WORD.findall(pattern)))[:_MAX_WORDS]
    signs = _NOT_SPELLED.sub("", pattern)
    return words + tuple(dict.fromkeys(sign for sign in signs if sign.isascii() and sign.isprintable()))[:_MAX_SIGNS]


def has_free_strings_only(schema: dict[str, Any]) -> bool:
    """Whether every string in what meets `schema` is either one that the schema spells out, or any string at all (any
    but some, where it is a key). So one that goes on with what the schema spells nowhere goes on with anything."""
    return all(not _STRING_LIMITS & part.keys() and _leads_to_part(part.get("$ref", "#")) for part in _walk(schema))


def _leads_to_part(reference: Any) -> bool:
    """To one that `_walk` comes to."""
    return isinstance(reference, str) and _REFERENCE.fullmatch(reference) is not None


def least_chars_of_parts(schema: dict[str, Any]) -> int:
    """The most characters that the shortest text of any schema in `schema` has, roughly; in time linear in its size.
    `schema` itself counts where it is a part of itself."""
    sizer = _Sizer(schema)
    whole, *parts = _walk(schema)
    if any(part.get("$ref") == "#" for part in parts):
        parts.append(whole)
    return max(map(sizer.least, parts), default=0)


def least_chars_of(schema: dict[str, Any]) -> int:
    """The characters that the shortest text of `schema` has, roughly, up to a few thousand."""
    return _Sizer(schema).least(schema)


class _Sizer:
    """How long the shortest text that meets a part of `root` is, roughly: patterns and limits of numbers are not read,
    and neither is what refers to itself. Each part is sized once."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._known: dict[int, int] = {}  # by id, of parts that `root` keeps alive
        self._depth = 0

    def least(self, part: Any) -> int:
        if not isinstance(part, dict) or self._depth > _MAX_LEVELS:
            return 1
        if id(part) not in self._known:
            self._known[id(part)] = 1  # for what leads back here
            self._depth += 1
            self._known[id(part)] = min(self._size(part), _MAX_CHARS)
            self._depth -= 1
        return self._known[id(part)]

    def _size(self, part: dict[str, Any]) -> int:
        values = part.get("enum", [part["const"]] if "const" in part else None)
        if isinstance(values, list) and values:
            return min(len(json.dumps(value)) for value in values)
        if isinstance(part.get("$ref"), str):
            return self.least(referred(part["$ref"], self._root))
        branches = [self.least(branch) for key in ("anyOf", "oneOf") for branch in _list(part.get(key))]
        own = sum(self.least(branch) for branch in _list(part.get("allOf"))) + min(branches, default=0)
        types = part.get("type")
        if types == "object" or (types is None and "required" in part):
            properties = part.get("properties")
            known = properties if isinstance(properties, dict) else {}
            keys = [key for key in _list(part.get("required")) if isinstance(key, str)]
            return own + 2 + sum(len(key) + 4 + self.least(known.get(key)) for key in keys)
        if types == "array":
            return own + 2 + min(_count(part, "minItems"), _MAX_CHARS) * (1 + self.least(part.get("items")))
        if types == "string":
            return own + 2 + 2 * _count(part, "minLength") + _FORMAT_CHARS * ("format" in part)
        return max(own, 4 if types == "boolean" else 1)


def referred(reference: str, root: dict[str, Any]) -> Any:
    """What a reference within the same schema points at; None for any other."""
    value: Any = root
    for name in reference.removeprefix("#").split("/")[1:] if reference.startswith("#") else ["?"]:
        value = value.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(value, dict) else None
    return value


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _count(schema: dict[str, Any], key: str) -> int:
    value = schema.get(key, 0)
    return value if isinstance(value, int) and value > 0 else 0


def depth_of(value: Any) -> int:
    """Levels of objects and lists in a parsed JSON value."""
    depth, level = 0, [value]
    while level := [item for item in level if isinstance(item, dict | list)]:
        depth += 1
        level = [inner for item in level for inner in (item.values() if isinstance(item, dict) else item)]
    return depth


def _limits(schema: dict[str, Any]) -> list[float]:
    """The numeric limits it sets itself, and 0."""
    values = [schema.get(key) for key in _NUMBER_LIMITS]
    return [0, *(value for value in values if isinstance(value, int | float) and not isinstance(value, bool))]


def map_subschemas(schema: dict[str, Any], change: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """A copy of `schema` with `change` applied to each schema directly in it."""

    def changed(value: Any) -> Any:
        return change(value) if isinstance(value, dict) else value

    copy = dict(schema)
    for key, value in schema.items():
        if key in _ONE:
            copy[key] = changed(value)
        elif key in _LISTS and isinstance(value, list):
            copy[key] = [changed(item) for item in value]
        elif key in _MAPS and isinstance(value, dict):
            copy[key] = {name: changed(item) for name, item in value.items()}
    return copy


def _walk(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """`schema` and every schema in it."""
    yield schema
    for key, value in schema.items():
        inner: Iterable[Any] = ()
        if key in _ONE:
            inner = (value,)
        elif key in _LISTS and isinstance(value, list):
            inner = value
        elif key in _MAPS and isinstance(value, dict):
            inner = value.values()
        for each in inner:
            if isinstance(each, dict):
                yield from _walk(each)


def _patterns(schema: dict[str, Any]) -> list[str]:
    own = schema.get("pattern")
    keys = schema.get("patternProperties")
    return [*([own] if isinstance(own, str) else []), *(keys if isinstance(keys, dict) else [])]
