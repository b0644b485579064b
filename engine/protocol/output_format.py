"""The output format that a body asks for -> `Constraint`: `response_format` in both families' forms, and `guided_json`.

A JSON schema comes bare, or in OpenAI's wrapper `{name, schema, strict}`; it is always held to. Whether its keywords
can be, only the node can say. Reading raises `BadInput`. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from engine.protocol import fields
from engine.protocol.fields import BadInput
from engine.protocol.tasks import Constraint

MAX_SCHEMA_BYTES = 64 * 1024
MAX_SCHEMA_DEPTH = 32

_WRAPPER = {"name", "description", "schema", "strict"}
_SCHEMA_KEYWORDS = {"type", "properties", "$ref", "anyOf", "oneOf", "allOf", "enum", "const", "items"}


def output_constraint(body: Mapping[str, Any]) -> Constraint | None:
    """What the answer must match; None for free text. Raises BadInput."""
    guided = body.get("guided_json")
    asked = format_constraint(body.get("response_format"), "/response_format")
    if guided is None:
        return asked
    if asked is not None:
        raise BadInput("'/guided_json' and '/response_format' cannot be combined")
    return _schema(_decoded(guided), "/guided_json")


def format_constraint(value: Any, pointer: str) -> Constraint | None:
    """What an output format at `pointer` asks for, its schema wrapped, bare, or beside its type. Raises BadInput."""
    if value is None:
        return None
    kind = fields.mapping(value, pointer).get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return Constraint("json_object")
    if kind != "json_schema":
        raise BadInput(f"'{pointer}/type' must be one of text, json_object, json_schema")
    if value.get("json_schema") is None:
        if value.get("schema") is not None:  # as the Responses API has it
            return _schema(value["schema"], f"{pointer}/schema")
        return Constraint("json_object")  # what Workers AI's provider for the AI SDK asks for where there is no schema
    pointer = f"{pointer}/json_schema"
    schema = fields.mapping(value["json_schema"], pointer)
    if isinstance(schema.get("schema"), dict) and _SCHEMA_KEYWORDS.isdisjoint(schema):
        return _schema(schema["schema"], f"{pointer}/schema")
    if "name" in schema and schema.get("schema") is None and schema.keys() <= _WRAPPER:
        return Constraint("json_object")
    return _schema(schema, pointer)


def _schema(value: Any, pointer: str) -> Constraint:
    schema = fields.mapping(value, pointer)
    fields.check_size(schema, pointer, max_bytes=MAX_SCHEMA_BYTES, max_depth=MAX_SCHEMA_DEPTH)
    return Constraint("json_schema", msgspec.json.encode(schema).decode())


def _decoded(value: Any) -> Any:
    """Some clients send the schema as JSON text."""
    if not isinstance(value, str):
        return value
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise BadInput("'/guided_json' must be a JSON schema") from error
