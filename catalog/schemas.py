"""Which bodies a model admits: the JSON schemas of `catalog/schemas/`, made concrete for one card and compiled once.

One file describes one API format of a task and serves four uses: validation here, `models/schema`, the API page and the
playground. Beside standard JSON Schema a file may say:

    x-capability   this part exists only for cards with the capability; its field is otherwise refused, unless its
    x-neutral      value is one of these, which ask for nothing
    x-code         the error code of that refusal
    x-card         {"x-card": "context_window"} stands for that value of the card
    x-file         {"x-file": "openai_chat"} among alternatives stands for those of that file
    maxBytes       UTF-8 bytes of a string; maxJsonBytes: bytes of any value as JSON

and at its top which fields no caller may send (`refused`) and which variant is meant when several fit (`precedence`).
Violations are told in the contract's dialect by `violations.py`. Nothing here knows HTTP.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any, Literal

import jsonschema_rs
import msgspec

from catalog.card import ModelCard
from catalog.errors import SchemaViolation
from catalog.listed import ListedModel
from catalog.violations import describe, missing, needs_capability, not_accepted

Body = dict[str, Any]

_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_MAX_NUMBER_CHARACTERS = 20


@lru_cache(maxsize=1024)
def input_schema(card: ModelCard, name: str = "") -> InputSchema:
    """Return a compiled schema of `catalog/schemas/` for a card; by default that of the card's native format."""
    return InputSchema(_read(name or card.schema), card)


def schema_document(card: ModelCard | ListedModel) -> dict[str, Any]:
    """`{"input", "output"}` of the card's own shape, as the `models/schema` route serves it. Tasks that nodes do not do
    yet have theirs in one file."""
    source = _read_listed().get(card.schema) or _read(card.schema)
    return {half: _concrete(source[half], card) for half in ("input", "output")}


def general_document(name: str) -> dict[str, Any]:
    """`{"input", "output"}` of a file of `catalog/schemas/`, for no card in particular: limits that each card has its
    own value of are left out, and parts that only some cards have say so."""
    source = _read(name)
    return {half: _general(source[half]) for half in ("input", "output")}


class InputSchema:
    """Validates bodies for one card and schema."""

    def __init__(self, source: dict[str, Any], card: ModelCard) -> None:
        document = _concrete(source["input"], card)
        shapes = document.get("oneOf", [document])
        self._variants = {shape["required"][0]: _Variant.compile(shape) for shape in shapes}
        self._precedence: list[str] = [key for key in source["precedence"] if key in self._variants]
        self._refused = frozenset(source["refused"])
        self._gates = _gates(source["input"], card)
        self._watched = self._refused | self._gates.keys()

    def coerce_and_validate(self, body: Body) -> Body:
        """The declared fields of `body`, string booleans and numeric strings converted, without nulls and without
        what is not declared. `body` itself is left as it is. Raises SchemaViolation."""
        for field in self._watched & body.keys():
            self._check_watched(field, body[field])
        variant = self._choose(body)
        admitted = variant.coerce(body)
        try:
            if variant.validator.is_valid(admitted):
                return admitted
            violation = describe(variant.validator.iter_errors(admitted))
        except ValueError as error:  # text or nesting that the validator cannot read
            raise SchemaViolation("the body holds text or nesting that cannot be read", "/") from error
        raise violation

    def is_valid(self, admitted: Body) -> bool:
        """Whether a body made of fields that were admitted before is one that would be now."""
        try:
            return self._choose(admitted).validator.is_valid(admitted)
        except ValueError:  # text or nesting that the validator cannot read
            return False

    def has_field(self, field: str) -> bool:
        """Whether bodies of any variant may have it."""
        return any(field in variant.kinds for variant in self._variants.values())

    def _check_watched(self, field: str, value: Any) -> None:
        if value is None:
            return
        if field in self._refused:
            raise not_accepted(field)
        gate = self._gates[field]
        if any(value == neutral and type(value) is type(neutral) for neutral in gate.neutral):
            return
        if gate.grammar is not None and not gate.grammar.is_valid({field: value}):
            raise describe(gate.grammar.iter_errors({field: value}))
        raise needs_capability(field, gate.capability, gate.code)

    def _choose(self, body: Body) -> _Variant:
        for key in self._precedence:
            if body.get(key) is not None:
                return self._variants[key]
        for key in self._precedence:
            if key in body:
                return self._variants[key]
        raise missing(list(self._variants))


@dataclass(frozen=True)
class _Gate:
    """Why a top-level field is not for this card, and which values of it are harmless. A refusal with a code of its own
    is for values that keep to the field's grammar; others are told so first."""

    capability: str
    neutral: tuple[Any, ...]
    code: int
    grammar: jsonschema_rs.Validator | None


@dataclass(frozen=True)
class _Variant:
    """One alternative of a schema: its validator, and how to coerce each declared field."""

    validator: jsonschema_rs.Validator
    kinds: dict[str, _Kind]
    required: frozenset[str]

    @classmethod
    def compile(cls, shape: dict[str, Any]) -> _Variant:
        keywords: dict[str, Any] = {"maxBytes": _MaxBytes, "maxJsonBytes": _MaxJsonBytes}
        validator = jsonschema_rs.Draft202012Validator(shape, keywords=keywords)
        return cls(validator, _kinds(shape), frozenset(shape["required"]))

    def coerce(self, body: Body) -> Body:
        return {
            field: kind.coerce(value)
            for field, value in body.items()
            if (kind := self.kinds.get(field)) is not None and (value is not None or field in self.required)
        }


@dataclass(frozen=True)
class _Kind:
    """How the value of one declared field is coerced: `wants` a scalar, or has fields of its own, or is left alone."""

    wants: Literal["boolean", "integer", "number", None]
    fields: dict[str, _Kind]

    def coerce(self, value: Any) -> Any:
        if self.fields and isinstance(value, dict):
            return {
                field: kind.coerce(inner) if (kind := self.fields.get(field)) else inner
                for field, inner in value.items()
                if inner is not None
            }
        if self.wants == "boolean" and isinstance(value, str):
            return {"true": True, "false": False}.get(value, value)
        if self.wants in ("integer", "number"):
            if isinstance(value, str):
                value = _number(value)
            if self.wants == "integer" and isinstance(value, float) and value.is_integer():
                return int(value)
        return value


def _number(text: str) -> Any:
    """The number that `text` spells; `text` itself when it spells none that is finite and short enough."""
    if len(text) > _MAX_NUMBER_CHARACTERS or not _NUMBER.fullmatch(text):
        return text
    try:
        return int(text)
    except ValueError:
        value = float(text)
        return value if math.isfinite(value) else text


def _kinds(shape: dict[str, Any]) -> dict[str, _Kind]:
    kinds = {}
    for field, schema in shape.get("properties", {}).items():
        wants = schema.get("type")
        kinds[field] = _Kind(wants if wants in ("boolean", "integer", "number") else None, _kinds(schema))
    return kinds


def _gates(source: Any, card: ModelCard) -> dict[str, _Gate]:
    """Every top-level field, of any variant, that this card lacks the capability for."""
    gates = {}
    for shape in source.get("oneOf", [source]):
        for field, schema in shape.get("properties", {}).items():
            if _is_lacking(schema, card):
                neutral = tuple(schema.get("x-neutral", ()))
                gates[field] = _Gate(
                    schema["x-capability"], neutral, schema.get("x-code", 5006), _grammar(field, schema)
                )
    return gates


def _grammar(field: str, schema: Body) -> jsonschema_rs.Validator | None:
    if "x-code" not in schema:
        return None
    bare = {key: value for key, value in schema.items() if not key.startswith("x-")}
    return jsonschema_rs.Draft202012Validator({"properties": {field: bare}})


def _is_lacking(schema: Any, card: ModelCard | ListedModel) -> bool:
    if not isinstance(schema, dict):
        return False
    if "x-card" in schema:
        return getattr(card, schema["x-card"]) is None
    return "x-capability" in schema and schema["x-capability"] not in card.capabilities


def _concrete(schema: Any, card: ModelCard | ListedModel) -> Any:
    """`schema` for this card: its values filled in, parts that it lacks left out, our own annotations gone. What a
    listed model does not say is left out as well."""
    if isinstance(schema, list):
        return [_concrete(item, card) for item in schema if not _is_lacking(item, card)]
    if not isinstance(schema, dict):
        return schema
    if "x-card" in schema:
        return getattr(card, schema["x-card"])
    return {
        key: _concrete(value, card)
        for key, value in schema.items()
        if not key.startswith("x-") and not _is_lacking(value, card)
    }


def _general(schema: Any) -> Any:
    """`schema` for any card, our own annotations gone."""
    if isinstance(schema, list):
        return [_general(item) for item in schema if not _is_card_value(item)]
    if not isinstance(schema, dict):
        return schema
    general = {
        key: _general(value)
        for key, value in schema.items()
        if not key.startswith("x-") and not _is_card_value(value) and not (key == "enum" and _is_card_value(value[0]))
    }
    if "x-capability" in schema:
        needs = f"For models with the capability {schema['x-capability']}."
        general["description"] = " ".join(filter(None, (general.get("description"), needs)))
    return general


def _is_card_value(schema: Any) -> bool:
    return isinstance(schema, dict) and "x-card" in schema


@lru_cache(maxsize=1)
def _read_listed() -> dict[str, Any]:
    text = resources.files("catalog").joinpath("listed_schemas.json").read_text("utf-8")
    sources: dict[str, Any] = json.loads(text)
    return sources


@lru_cache(maxsize=16)
def _read(name: str) -> dict[str, Any]:
    text = resources.files("catalog").joinpath("schemas", f"{name}.json").read_text("utf-8")
    source: dict[str, Any] = json.loads(text)
    for half in ("input", "output"):
        alternatives = source[half].get("oneOf", ())
        if any("x-file" in alternative for alternative in alternatives):
            parts = [_read(alternative["x-file"])[half] for alternative in alternatives]
            source[half]["oneOf"] = [inner for part in parts for inner in part.get("oneOf", [part])]
    return source


class _MaxBytes:
    """Keyword `maxBytes`. Like `maxLength`, says nothing about values that are not strings."""

    def __init__(self, _parent: dict[str, Any], limit: int, _path: list[str | int]) -> None:
        self._limit = limit

    def validate(self, instance: Any) -> None:
        if isinstance(instance, str) and len(instance.encode()) > self._limit:
            raise ValueError(str(self._limit))


class _MaxJsonBytes(_MaxBytes):
    """Keyword `maxJsonBytes`."""

    def validate(self, instance: Any) -> None:
        if len(msgspec.json.encode(instance)) > self._limit:
            raise ValueError(str(self._limit))
