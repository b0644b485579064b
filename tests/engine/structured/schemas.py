"""JSON schemas of the kinds that callers send, by name of their main feature."""

from __future__ import annotations

from typing import Any


def record(**properties: Any) -> dict[str, Any]:
    """Return the schema of an object with exactly these properties."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


STRING, INTEGER, NUMBER, BOOLEAN = ({"type": name} for name in ("string", "integer", "number", "boolean"))
_ADDRESS = record(street=STRING, city={"enum": ["Paris", "London", "Rome"]})
_TREE = {
    "$defs": {"node": record(value=INTEGER, children={"type": "array", "items": {"$ref": "#/$defs/node"}})},
    "$ref": "#/$defs/node",
}

SCHEMAS: dict[str, dict[str, Any]] = {
    "a flat record": record(name=STRING, age=INTEGER, height=NUMBER, is_member=BOOLEAN),
    "a record in a record": record(name=STRING, address=_ADDRESS),
    "four levels": record(a=record(b=record(c=record(d=INTEGER)))),
    "an optional key": {"type": "object", "properties": {"a": STRING, "b": INTEGER}, "required": ["b"]},
    "only optional keys": {"type": "object", "properties": {"a": STRING, "b": INTEGER}, "additionalProperties": False},
    "other keys of one type": {"type": "object", "additionalProperties": INTEGER},
    "keys by pattern": {"type": "object", "patternProperties": {"^x_[a-z]+$": NUMBER}, "additionalProperties": False},
    "keys that contain a word": {
        "type": "object",
        "patternProperties": {"[a-z]cole": True},
        "additionalProperties": False,
    },
    "at least two keys": {"type": "object", "additionalProperties": STRING, "minProperties": 2, "maxProperties": 3},
    "no keys": record(),
    "an enum": {"enum": ["red", "green", "deep blue"]},
    "an enum of all types": {"enum": ["a", 1, 2.5, None, True, [1], {"b": 2}]},
    "a constant": record(kind={"const": "invoice"}, version={"const": 2}),
    "any of two records": {"anyOf": [record(a=INTEGER), record(b=STRING)]},
    "any of three types": record(value={"anyOf": [STRING, {"type": "null"}, {"type": "array", "items": INTEGER}]}),
    "one of with a constant": {
        "oneOf": [record(kind={"const": "a"}, x=INTEGER), record(kind={"const": "b"}, y=STRING)]
    },
    "all of": {"allOf": [{"type": "object", "properties": {"a": STRING}, "required": ["a"]}, {"required": ["b"]}]},
    "a nullable string": record(note={"type": ["string", "null"]}),
    "a list of strings": {"type": "array", "items": STRING},
    "two to four numbers": {"type": "array", "items": NUMBER, "minItems": 2, "maxItems": 4},
    "exactly three records": {"type": "array", "items": record(x=INTEGER), "minItems": 3, "maxItems": 3},
    "a tuple": {"type": "array", "prefixItems": [STRING, INTEGER], "items": False, "minItems": 2},
    "lists of lists": {"type": "array", "items": {"type": "array", "items": INTEGER, "maxItems": 3}, "maxItems": 3},
    "a pattern": record(code={"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"}),
    "an address by pattern": record(mail={"type": "string", "pattern": "^[a-z]+@[a-z]+\\.(com|org)$"}),
    "a short string": record(word={"type": "string", "minLength": 3, "maxLength": 8}),
    "a date": record(day={"type": "string", "format": "date"}, at={"type": "string", "format": "date-time"}),
    "a uuid": record(id={"type": "string", "format": "uuid"}),
    "an IP address": record(host={"type": "string", "format": "ipv4"}),
    "a bounded integer": record(age={"type": "integer", "minimum": 0, "maximum": 130}),
    "a bounded number": record(share={"type": "number", "exclusiveMinimum": 0, "maximum": 1}),
    "a multiple": record(tens={"type": "integer", "multipleOf": 10}),
    "a tree": _TREE,
    "definitions": {"$defs": {"address": _ADDRESS}, **record(home={"$ref": "#/$defs/address"})},
    "anything": {},
    "any object": {"type": "object"},
    "keys with quotes and accents": record(**{'say "hi"': STRING, "größe": INTEGER, "a\\b": BOOLEAN}),
    "words of other scripts": {"enum": ["日本語", "emoji 🎉", "naïve", "tab\tnewline\n"]},
}

# Optional parts need many tokens: if one begins shortly before the token limit, the text cannot be closed.
SCHEMAS["large optional parts"] = {
    "type": "object",
    "properties": {
        "note": STRING,
        "detail": record(
            identification={"type": "string", "format": "uuid"},
            responsible_department=STRING,
            classification={"enum": ["confidential", "restricted"]},
        ),
        "history": {"type": "array", "items": record(first_recorded_value=INTEGER, last_recorded_value=INTEGER)},
    },
    "required": ["note"],
    "additionalProperties": False,
}
