"""The output format that a body asks for -> `Constraint`: `response_format` in both families' forms, `guided_json`, and
the other fields in which programs written for vLLM ask for a format.

A JSON schema comes bare, or in OpenAI's wrapper `{name, schema, strict}`; it is always held to, also where the type
says no more than that an object is wanted. Whether its keywords
can be, or a pattern or a grammar, only the node can say. Reading raises `BadInput`. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from engine.protocol import fields
from engine.protocol.fields import BadInput
from engine.protocol.tasks import Constraint

MAX_SCHEMA_BYTES = 64 * 1024
MAX_SCHEMA_DEPTH = 32
MAX_REGEX_BYTES = 1024
MAX_GRAMMAR_BYTES = 64 * 1024
MAX_CHOICES = 1000

_WRAPPER = {"name", "description", "schema", "strict"}
_UNSUPPORTED = ("disable_additional_properties", "disable_any_whitespace", "structural_tag", "whitespace_pattern")
_SCHEMA_KEYWORDS = {"type", "properties", "$ref", "anyOf", "oneOf", "allOf", "enum", "const", "items"}


def output_constraint(body: Mapping[str, Any]) -> Constraint | None:
    """What the answer must match; None for free text. Raises BadInput."""
    found = {
        f"/guided_{name}": read(body[f"guided_{name}"], f"/guided_{name}")
        for name, read in _READERS.items()
        if body.get(f"guided_{name}") is not None
    }
    outputs = body.get("structured_outputs")
    if outputs is not None:
        found["/structured_outputs"] = _structured(outputs, "/structured_outputs")
    asked = format_constraint(body.get("response_format"), "/response_format")
    if asked is not None:
        found["/response_format"] = asked
    if len(found) > 1:
        names = " and ".join(f"'{name}'" for name in found)
        raise BadInput(f"{names} cannot be combined")
    return next(iter(found.values()), None)


def format_constraint(value: Any, pointer: str) -> Constraint | None:
    """What an output format at `pointer` asks for, its schema wrapped, bare, or beside its type. Raises BadInput."""
    if value is None:
        return None
    kind = fields.mapping(value, pointer).get("type")
    if kind == "text":
        return None
    if kind == "json_object" and not (value.get("schema") or value.get("json_schema")):
        return Constraint("json_object")
    if kind in ("regex", "grammar"):
        name = kind if value.get(kind) is not None else "value"
        return _READERS[kind](value.get(name), f"{pointer}/{kind if name == 'value' else name}")
    if kind not in ("json_schema", "json_object"):
        raise BadInput(f"'{pointer}/type' must be one of text, json_object, json_schema, regex, grammar")
    if value.get("json_schema") is None:
        if value.get("schema") is not None:  # as the Responses API has it, and llama.cpp's server for objects
            return _schema(value["schema"], f"{pointer}/schema")
        return Constraint("json_object")  # what Workers AI's provider for the AI SDK asks for where there is no schema
    pointer = f"{pointer}/json_schema"
    schema = fields.mapping(value["json_schema"], pointer)
    is_wrapper = schema.keys() <= _WRAPPER or isinstance(schema.get("schema"), dict)
    if schema.get("schema") is not None and is_wrapper and _SCHEMA_KEYWORDS.isdisjoint(schema):
        return _schema(schema["schema"], f"{pointer}/schema")
    if "name" in schema and schema.get("schema") is None and schema.keys() <= _WRAPPER:
        return Constraint("json_object")
    return _schema(schema, pointer)


def _schema(value: Any, pointer: str) -> Constraint:
    schema = fields.mapping(value, pointer)
    fields.check_size(schema, pointer, max_bytes=MAX_SCHEMA_BYTES, max_depth=MAX_SCHEMA_DEPTH)
    return Constraint("json_schema", msgspec.json.encode(schema).decode(), pointer)


def _structured(value: Any, pointer: str) -> Constraint:
    """vLLM's later form: one object with one of the same formats."""
    asked = {name: what for name, what in fields.mapping(value, pointer).items() if what not in (None, False)}
    for name in _UNSUPPORTED:
        if name in asked:
            raise BadInput(f"'{pointer}/{name}' is not supported")
    names = [name for name in asked if name in _READERS or name == "json_object"]
    if len(names) != 1:
        raise BadInput(f"'{pointer}' must have one of json, json_object, regex, choice, grammar")
    if names[0] == "json_object":
        return Constraint("json_object")
    return _READERS[names[0]](asked[names[0]], f"{pointer}/{names[0]}")


def _json(value: Any, pointer: str) -> Constraint:
    """Some clients send the schema as JSON text."""
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
            raise BadInput(f"'{pointer}' must be a JSON schema") from error
    return _schema(value, pointer)


def _regex(value: Any, pointer: str) -> Constraint:
    return Constraint("regex", _text(value, pointer, MAX_REGEX_BYTES), pointer)


def _grammar(value: Any, pointer: str) -> Constraint:
    return Constraint("grammar", _text(value, pointer, MAX_GRAMMAR_BYTES), pointer)


def _choice(value: Any, pointer: str) -> Constraint:
    choices = fields.items(value, pointer, maximum=MAX_CHOICES)
    if not choices or not all(isinstance(choice, str) for choice in choices):
        raise BadInput(f"'{pointer}' must be a list of at least one string")
    fields.check_size(choices, pointer, max_bytes=MAX_SCHEMA_BYTES, max_depth=1)
    return Constraint("choice", msgspec.json.encode(choices).decode(), pointer)


def _text(value: Any, pointer: str, max_bytes: int) -> str:
    text = fields.text(value, pointer, max_characters=max_bytes)
    if not text or len(text.encode(errors="replace")) > max_bytes:
        raise BadInput(f"'{pointer}' must have 1 to {max_bytes} bytes")
    return text


_READERS: dict[str, Callable[[Any, str], Constraint]] = {
    "json": _json,
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
}
