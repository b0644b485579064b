"""Request validation: the JSON schemas of `catalog/schemas/`, specialized for one card and compiled once.

Each file describes one request format of a task. It is used for validation, for `models/schema`, for the OpenAPI
document and for the playground. In addition to standard JSON Schema, a file may contain:

    x-capability   this part exists only for cards with the capability; otherwise the field is rejected
    x-neutral      values of such a field that are accepted nevertheless because they request nothing
    x-code         the error code of the rejection
    x-card         {"x-card": "context_window"} is replaced by that value of the card
    x-file         {"x-file": "openai_chat"} among alternatives is replaced by the alternatives of that file
    x-sampling     {"x-sampling": "top_k"} is replaced by the bounds of that parameter in `engine/protocol/sampling.py`;
                   {"x-sampling": true} among properties is replaced by all parameters that OpenAI's formats share
    maxBytes       maximum UTF-8 bytes of a string; maxJsonBytes: maximum bytes of any value as JSON

At its top level, a file lists the fields that callers may not send (`refused`), and the order in which alternatives are
tried (`precedence`). `violations.py` writes the error messages.
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
from engine.protocol.sampling import SHARED_PARAMETERS, bounds_schema

Body = dict[str, Any]

_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_MAX_NUMBER_CHARACTERS = 20


@lru_cache(maxsize=1024)
def input_schema(card: ModelCard, name: str = "") -> InputSchema:
    """Return a compiled schema of `catalog/schemas/` for a card; by default that of the card's native format."""
    return InputSchema(_read(name or card.schema), card)


def schema_document(card: ModelCard | ListedModel) -> dict[str, Any]:
    """Return `{"input", "output"}` of the card's own schema, for the `models/schema` route."""
    source = _read_listed().get(card.schema) or _read(card.schema)
    return {half: _concrete(source[half], card) for half in ("input", "output")}


def general_document(name: str) -> dict[str, Any]:
    """Return `{"input", "output"}` of a schema file for any card.

    Limits that depend on the card are left out. Fields that need a capability say so in their descriptions.
    """
    source = _read(name)
    return {half: _general(source[half]) for half in ("input", "output")}


class InputSchema:
    """Validates request bodies for one card and schema."""

    def __init__(self, source: dict[str, Any], card: ModelCard) -> None:
        document = _concrete(source["input"], card)
        alternatives = document.get("oneOf", [document])
        self._alternatives = {each["required"][0]: _Alternative.compile(each) for each in alternatives}
        self._precedence: list[str] = [key for key in source["precedence"] if key in self._alternatives]
        self._refused = frozenset(source["refused"])
        self._restricted = _restrictions(source["input"], card)
        self._checked = self._refused | self._restricted.keys()

    def coerce_and_validate(self, body: Body) -> Body:
        """Return the declared fields of `body`, with string booleans and numeric strings converted, and without nulls.

        `body` is not changed. Raises SchemaViolation.
        """
        for field in self._checked & body.keys():
            self._check_field(field, body[field])
        alternative = self._choose(body)
        admitted = alternative.coerce(body)
        try:
            if alternative.validator.is_valid(admitted):
                return admitted
            violation = describe(alternative.validator.iter_errors(admitted))
        except ValueError as error:  # invalid Unicode, or nested too deeply for the validator
            raise SchemaViolation("the body contains invalid Unicode or is nested too deeply", "/") from error
        raise violation

    def is_valid(self, admitted: Body) -> bool:
        """Return True if a body of validated fields is valid."""
        try:
            return self._choose(admitted).validator.is_valid(admitted)
        except ValueError:  # invalid Unicode, or nested too deeply for the validator
            return False

    def has_field(self, field: str) -> bool:
        """Return True if an alternative declares the field."""
        return any(field in alternative.kinds for alternative in self._alternatives.values())

    def _check_field(self, field: str, value: Any) -> None:
        if value is None:
            return
        if field in self._refused:
            raise not_accepted(field)
        restriction = self._restricted[field]
        if any(value == neutral and type(value) is type(neutral) for neutral in restriction.neutral):
            return
        if restriction.validator is not None and not restriction.validator.is_valid({field: value}):
            raise describe(restriction.validator.iter_errors({field: value}))
        raise needs_capability(field, restriction.capability, restriction.code)

    def _choose(self, body: Body) -> _Alternative:
        for key in self._precedence:
            if body.get(key) is not None:
                return self._alternatives[key]
        for key in self._precedence:
            if key in body:
                return self._alternatives[key]
        raise missing(list(self._alternatives))


@dataclass(frozen=True)
class _Restriction:
    """A top-level field that this card does not support, with the values that are accepted nevertheless.

    If the rejection has its own error code, a value that violates the field's schema (`validator`) is reported as a
    schema violation first.
    """

    capability: str
    neutral: tuple[Any, ...]
    code: int
    validator: jsonschema_rs.Validator | None


@dataclass(frozen=True)
class _Alternative:
    """One alternative of a schema: its validator, and the conversion of each declared field."""

    validator: jsonschema_rs.Validator
    kinds: dict[str, _Kind]
    required: frozenset[str]

    @classmethod
    def compile(cls, schema: dict[str, Any]) -> _Alternative:
        keywords: dict[str, Any] = {"maxBytes": _MaxBytes, "maxJsonBytes": _MaxJsonBytes}
        validator = jsonschema_rs.Draft202012Validator(schema, keywords=keywords)
        return cls(validator, _kinds(schema), frozenset(schema["required"]))

    def coerce(self, body: Body) -> Body:
        return {
            field: kind.coerce(value)
            for field, value in body.items()
            if (kind := self.kinds.get(field)) is not None and (value is not None or field in self.required)
        }


@dataclass(frozen=True)
class _Kind:
    """The conversion of one declared field: to the scalar type `type`, or of its nested `fields`, or none."""

    type: Literal["boolean", "integer", "number", None]
    fields: dict[str, _Kind]

    def coerce(self, value: Any) -> Any:
        if self.fields and isinstance(value, dict):
            return {
                field: kind.coerce(inner) if (kind := self.fields.get(field)) else inner
                for field, inner in value.items()
                if inner is not None
            }
        if self.type == "boolean" and isinstance(value, str):
            return {"true": True, "false": False}.get(value, value)
        if self.type in ("integer", "number"):
            if isinstance(value, str):
                value = _number(value)
            if self.type == "integer" and isinstance(value, float) and value.is_integer():
                return int(value)
        return value


def _number(text: str) -> Any:
    """Return the number in `text`, or `text` itself if it is not a finite number of at most 20 characters."""
    if len(text) > _MAX_NUMBER_CHARACTERS or not _NUMBER.fullmatch(text):
        return text
    try:
        return int(text)
    except ValueError:
        value = float(text)
        return value if math.isfinite(value) else text


def _kinds(schema: dict[str, Any]) -> dict[str, _Kind]:
    kinds = {}
    for field, declared in schema.get("properties", {}).items():
        type_ = declared.get("type")
        kinds[field] = _Kind(type_ if type_ in ("boolean", "integer", "number") else None, _kinds(declared))
    return kinds


def _restrictions(source: Any, card: ModelCard) -> dict[str, _Restriction]:
    """Return the top-level fields, of any alternative, for which this card lacks the capability."""
    restrictions = {}
    for alternative in source.get("oneOf", [source]):
        for field, schema in alternative.get("properties", {}).items():
            if _is_lacking(schema, card):
                neutral = tuple(schema.get("x-neutral", ()))
                restrictions[field] = _Restriction(
                    schema["x-capability"], neutral, schema.get("x-code", 5006), _field_validator(field, schema)
                )
    return restrictions


def _field_validator(field: str, schema: Body) -> jsonschema_rs.Validator | None:
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
    """Return `schema` for this card: values filled in, unsupported parts and `x-` annotations removed.

    Values that a listed model does not have are removed as well.
    """
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
    """Return `schema` for any card, without `x-` annotations."""
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
        requirement = f"For models with the capability {schema['x-capability']}."
        general["description"] = " ".join(filter(None, (general.get("description"), requirement)))
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
    source: dict[str, Any] = _with_bounds(json.loads(text))
    for half in ("input", "output"):
        alternatives = source[half].get("oneOf", ())
        if any("x-file" in alternative for alternative in alternatives):
            parts = [_read(alternative["x-file"])[half] for alternative in alternatives]
            source[half]["oneOf"] = [inner for part in parts for inner in part.get("oneOf", [part])]
    return source


def _with_bounds(schema: Any) -> Any:
    """Return the schema with the declared bounds of sampling parameters filled in."""
    if isinstance(schema, list):
        return [_with_bounds(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if isinstance(schema.get("x-sampling"), str):
        return bounds_schema(schema["x-sampling"])
    found: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "x-sampling":
            found |= {name: bounds_schema(name) for name in SHARED_PARAMETERS}
        else:
            found[key] = _with_bounds(value)
    return found


class _MaxBytes:
    """Keyword `maxBytes`. Like `maxLength`, applies only to strings."""

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
