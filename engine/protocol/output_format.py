"""Output formats: what a completion must match, and the reader of every field by which clients ask for a format:
`response_format` (native and OpenAI), `guided_*` and `structured_outputs` (vLLM).

A JSON schema comes bare or in OpenAI's wrapper `{name, schema, strict}`, and is always enforced, with or without
`strict`. Whether its keywords, a pattern or a grammar are supported is known only to the node. Readers raise
`BadInput`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec
from msgspec import Struct

from engine.protocol import fields
from engine.protocol.fields import BadInput

MAX_SCHEMA_BYTES = 64 * 1024
MAX_SCHEMA_DEPTH = 32
MAX_REGEX_BYTES = 1024
MAX_GRAMMAR_BYTES = 64 * 1024
MAX_CHOICES = 1000

_WRAPPER = {"name", "description", "schema", "strict"}
_UNSUPPORTED = ("disable_additional_properties", "disable_any_whitespace", "structural_tag", "whitespace_pattern")
_SCHEMA_KEYWORDS = {"type", "properties", "$ref", "anyOf", "oneOf", "allOf", "enum", "const", "items"}


class Constraint(Struct, frozen=True, omit_defaults=True):
    """A format that the completion must match from the first token to the last. `text` defines the format:

    | kind | text |
    |---|---|
    | `json_schema` | a JSON schema |
    | `json_object` | empty: any JSON object |
    | `regex` | a Rust regular expression |
    | `choice` | a JSON array of strings |
    | `grammar` | Lark as llguidance reads it (`<name>` is a control token of the model), or llama.cpp's GBNF |

    `field` is the JSON pointer of the format in the request body, for error messages only.
    """

    kind: Literal["json_schema", "json_object", "regex", "choice", "grammar"]
    text: str = ""
    field: str = ""


def read_constraint(body: Mapping[str, Any]) -> Constraint | None:
    """Return the output format that a body asks for; None for free text. Raises BadInput."""
    found = {
        f"/guided_{name}": read(body[f"guided_{name}"], f"/guided_{name}")
        for name, read in _READERS.items()
        if body.get(f"guided_{name}") is not None
    }
    outputs = body.get("structured_outputs")
    if outputs is not None:
        found["/structured_outputs"] = _structured(outputs, "/structured_outputs")
    response_format = read_response_format(body.get("response_format"), "/response_format")
    if response_format is not None:
        found["/response_format"] = response_format
    if len(found) > 1:
        names = " and ".join(f"'{name}'" for name in found)
        raise BadInput(f"{names} cannot be combined")
    return next(iter(found.values()), None)


def read_response_format(value: Any, pointer: str) -> Constraint | None:
    """Read a `response_format` object at `pointer`. Its schema may be wrapped, bare, or a sibling of `type`.

    Raises BadInput.
    """
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
        if value.get("schema") is not None:  # the form of the Responses API, and of llama.cpp's server
            return _schema(value["schema"], f"{pointer}/schema")
        return Constraint("json_object")  # sent by Workers AI's provider for the AI SDK if there is no schema
    pointer = f"{pointer}/json_schema"
    schema = fields.mapping(value["json_schema"], pointer)
    is_wrapper = schema.keys() <= _WRAPPER or isinstance(schema.get("schema"), dict)
    if schema.get("schema") is not None and is_wrapper and _SCHEMA_KEYWORDS.isdisjoint(schema):
        return _schema(schema["schema"], f"{pointer}/schema")
    if "name" in schema and schema.get("schema") is None and schema.keys() <= _WRAPPER:
        return Constraint("json_object")
    return _schema(schema, pointer)


def read_message_format(body: Mapping[str, Any]) -> Constraint | None:
    """Return the output format of an Anthropic Messages body, or None for free text.

    The format is in `output_config.format`, in the older `output_format`, or in vLLM's fields. Raises BadInput, also
    for output options that are not supported.
    """
    config = fields.mapping(body.get("output_config") or {}, "/output_config")
    for name, value in config.items():
        if name not in ("format", "effort") and value is not None:
            raise BadInput(f"'/output_config/{name}' is not supported")
    given = {"/output_config/format": config.get("format"), "/output_format": body.get("output_format")}
    found = {pointer: _message_schema(value, pointer) for pointer, value in given.items() if value is not None}
    other = read_constraint(body)
    if len(found) + (other is not None) > 1:
        names = [*found, *([] if other is None else [other.field or "/response_format"])]
        raise BadInput(" and ".join(f"'{name}'" for name in names) + " cannot be combined")
    return next(iter(found.values()), other)


def _message_schema(value: Any, pointer: str) -> Constraint:
    options = fields.mapping(value, pointer)
    if options.get("type") != "json_schema":
        raise BadInput(f"'{pointer}/type' must be json_schema")
    for name in options:
        if name not in ("type", "schema", "name"):
            raise BadInput(f"'{pointer}/{name}' is not supported")
    return _schema(options.get("schema"), f"{pointer}/schema")


def _schema(value: Any, pointer: str) -> Constraint:
    schema = fields.mapping(value, pointer)
    fields.check_size(schema, pointer, max_bytes=MAX_SCHEMA_BYTES, max_depth=MAX_SCHEMA_DEPTH)
    return Constraint("json_schema", msgspec.json.encode(schema).decode(), pointer)


def _structured(value: Any, pointer: str) -> Constraint:
    """Read vLLM's newer `structured_outputs`: an object with exactly one of the formats."""
    options = {name: option for name, option in fields.mapping(value, pointer).items() if option not in (None, False)}
    for name in _UNSUPPORTED:
        if name in options:
            raise BadInput(f"'{pointer}/{name}' is not supported")
    names = [name for name in options if name in _READERS or name == "json_object"]
    if len(names) != 1:
        raise BadInput(f"'{pointer}' must have one of json, json_object, regex, choice, grammar")
    if names[0] == "json_object":
        return Constraint("json_object")
    return _READERS[names[0]](options[names[0]], f"{pointer}/{names[0]}")


def _json(value: Any, pointer: str) -> Constraint:
    """Read a JSON schema; some clients send it as JSON text."""
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
