"""Tests of output formats: every form becomes the same constraint, and errors name the field."""

import json

import pytest

from engine.protocol.fields import BadInput
from engine.protocol.output_format import Constraint, read_constraint

SCHEMA = {"type": "object", "properties": {"schema": {"type": "object"}, "name": {"type": "string"}}}


def read_format(**response_format) -> Constraint | None:
    return read_constraint({"response_format": response_format})


@pytest.mark.parametrize("body", [{}, {"response_format": None}, {"response_format": {"type": "text"}}])
def test_free_text_is_not_constrained(body):
    assert read_constraint(body) is None


def test_json_object_is_any_object():
    assert read_format(type="json_object") == Constraint("json_object")
    assert read_format(type="json_schema", json_schema={"name": "x", "strict": True}) == Constraint("json_object")
    assert (
        read_format(type="json_schema")
        == read_format(type="json_schema", json_schema=None)
        == Constraint("json_object")
    )
    assert (
        read_format(type="json_object", schema={})
        == read_format(type="json_object", schema=None)
        == Constraint("json_object")
    )


@pytest.mark.parametrize(
    "json_schema",
    [
        SCHEMA,
        {"name": "person", "schema": SCHEMA, "strict": True},
        {"name": "person", "description": "d", "schema": SCHEMA, "strict": None, "vendor": 1},
        {"schema": SCHEMA},
    ],
)
def test_schema_is_read_bare_or_wrapped(json_schema):
    constraint = read_format(type="json_schema", json_schema=json_schema)
    assert constraint is not None
    assert (constraint.kind, json.loads(constraint.text)) == ("json_schema", SCHEMA)


@pytest.mark.parametrize("fields", [{"schema": SCHEMA}, {"json_schema": SCHEMA}, {"json_schema": {"schema": SCHEMA}}])
def test_json_object_with_a_schema_is_constrained_by_the_schema(fields):
    constraint = read_format(type="json_object", **fields)
    assert constraint is not None
    assert (constraint.kind, json.loads(constraint.text)) == ("json_schema", SCHEMA)
    assert constraint.field.startswith("/response_format/")


def test_bare_schema_with_a_field_called_schema_is_not_a_wrapper():
    bare = {"type": "object", "schema": {"type": "string"}}
    constraint = read_format(type="json_schema", json_schema=bare)
    assert constraint is not None
    assert json.loads(constraint.text) == bare


@pytest.mark.parametrize("schema", [SCHEMA, json.dumps(SCHEMA)])
def test_guided_json_is_a_schema_or_its_json_text(schema):
    constraint = read_constraint({"guided_json": schema})
    assert constraint is not None
    assert json.loads(constraint.text) == SCHEMA


def deep(depth: int) -> dict:
    schema: dict = {}
    for _ in range(depth - 1):
        schema = {"items": schema}
    return schema


def test_schema_at_the_depth_limit_is_accepted():
    assert read_format(type="json_schema", json_schema=deep(32)) is not None


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"response_format": "json"}, "'/response_format', expected 'object'"),
        ({"response_format": {}}, "'/response_format/type' must be one of"),
        ({"response_format": {"type": "xml"}}, "'/response_format/type' must be one of"),
        ({"response_format": {"type": "json_schema", "json_schema": []}}, "'/response_format/json_schema', expected"),
        ({"response_format": {"type": "json_schema", "json_schema": deep(33)}}, "nested deeper than 32"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": deep(33)}}},
            "'/response_format/json_schema/schema' must not be nested deeper",
        ),
        ({"response_format": {"type": "json_schema", "json_schema": {"enum": ["x" * 65536]}}}, "<= 65536 bytes"),
        *(
            ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}, message)
            for schema in (False, True, "x", [], 5)
            for message in ["'/response_format/json_schema/schema', expected 'object'"]
        ),
        ({"guided_json": "{"}, "'/guided_json' must be a JSON schema"),
        ({"guided_json": [1]}, "'/guided_json', expected 'object'"),
        ({"guided_json": {}, "response_format": {"type": "json_object"}}, "cannot be combined"),
    ],
)
def test_invalid_format_is_rejected_with_the_name_of_its_field(body, message):
    with pytest.raises(BadInput) as caught:
        read_constraint(body)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("body", "kind", "text", "field"),
    [
        ({"guided_regex": "a+"}, "regex", "a+", "/guided_regex"),
        ({"guided_grammar": 'start: "a"'}, "grammar", 'start: "a"', "/guided_grammar"),
        ({"guided_choice": ["a", "b"]}, "choice", '["a","b"]', "/guided_choice"),
        ({"structured_outputs": {"regex": "a+", "json_object": False}}, "regex", "a+", "/structured_outputs/regex"),
        ({"structured_outputs": {"json_object": True}}, "json_object", "", ""),
        ({"structured_outputs": {"json": '{"a":1}'}}, "json_schema", '{"a":1}', "/structured_outputs/json"),
        ({"response_format": {"type": "regex", "regex": "a+"}}, "regex", "a+", "/response_format/regex"),
        ({"response_format": {"type": "regex", "value": "a+"}}, "regex", "a+", "/response_format/regex"),
        ({"response_format": {"type": "grammar", "grammar": "a: b"}}, "grammar", "a: b", "/response_format/grammar"),
    ],
)
def test_pattern_grammar_and_choices_are_read_with_the_pointer_of_their_field(body, kind, text, field):
    assert read_constraint(body) == Constraint(kind, text, field)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"guided_regex": "a" * 1025}, "'/guided_regex' must"),
        ({"guided_regex": "ü" * 513}, "'/guided_regex' must have 1 to 1024 bytes"),
        ({"guided_regex": ""}, "'/guided_regex' must have 1 to 1024 bytes"),
        ({"guided_regex": 5}, "'/guided_regex'"),
        ({"guided_grammar": "a" * 65_537}, "'/guided_grammar' must"),
        ({"guided_choice": []}, "'/guided_choice' must be a list of at least one string"),
        ({"guided_choice": ["a", 1]}, "'/guided_choice' must be a list of at least one string"),
        ({"structured_outputs": {}}, "'/structured_outputs' must have one of json, json_object, regex"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "'/structured_outputs' must have one of"),
        ({"response_format": {"type": "regex"}}, "'/response_format/regex'"),
        ({"guided_regex": "a", "guided_json": {}}, "'/guided_json' and '/guided_regex' cannot be combined"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "cannot be combined"),
    ],
)
def test_malformed_format_is_rejected_by_name(body, message):
    with pytest.raises(BadInput) as caught:
        read_constraint(body)
    assert message in str(caught.value)
