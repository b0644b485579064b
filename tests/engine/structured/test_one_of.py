"""`oneOf` whose branches are known to be apart, as generators of schemas write it."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine.protocol.output_format import Constraint
from engine.structured.compile import ConstraintRefused, compile_matcher
from engine.structured.one_of import said_with_any_of
from tests.engine.structured.test_closing import VIEW

KEYWORDS = ["oneOf", "anyOf", "allOf", "type", "properties", "required", "enum", "const", "$ref", "$defs", "k"]
SCHEMAS: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from([None, True, 1, 1.5, "object", "k", "#", "#/$defs/k", [], {}]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYWORDS), inner, max_size=4),
    max_leaves=12,
)
PET = {
    "Cat": {"type": "object", "properties": {"kind": {"const": 1}, "lives": {"type": "integer"}}, "required": ["kind"]},
    "Dog": {"type": "object", "properties": {"kind": {"const": 2}, "name": {"type": "string"}}, "required": ["kind"]},
}
CAT, DOG = {"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}


def accepts(schema: dict[str, Any], value: Any) -> bool:
    matcher = compile_matcher(Constraint("json_schema", json.dumps(schema)), VIEW)
    tokens = VIEW.tokenizer.tokenize_str(json.dumps(value))
    return matcher.validate_tokens(tokens) == len(tokens)


@pytest.mark.parametrize(
    ("branches", "taken", "refused"),
    [
        ([{"type": "null"}, CAT], [None, {"kind": 1, "lives": 9}], [{"kind": 2}, 3]),
        ([CAT, DOG], [{"kind": 1, "lives": 9}, {"kind": 2, "name": "a"}], [{"kind": 2, "name": 9}, None]),
        ([CAT, DOG, {"type": "array", "items": CAT}], [[{"kind": 1}], {"kind": 2}], [[{"kind": 2}]]),
        ([{"enum": [1, 2]}, {"enum": [True, "1"]}], [1, True, "1"], ["2", False]),
        ([{"type": "integer"}, {"type": ["string", "null"]}], [1, "a", None], [True]),
    ],
)
def test_branches_that_are_apart_are_held_to(branches: list[Any], taken: list[Any], refused: list[Any]) -> None:
    schema = {"type": "object", "properties": {"a": {"oneOf": branches}}, "required": ["a"], "$defs": PET}
    schema["additionalProperties"] = False
    assert all(accepts(schema, {"a": value}) for value in taken)
    assert not any(accepts(schema, {"a": value}) for value in refused)


def test_members_without_a_type_are_apart_where_all_is_an_object() -> None:
    branches = [{key: PET[name][key] for key in ("properties", "required")} for name in PET]
    assert "anyOf" in said_with_any_of({"type": "object", "oneOf": branches})
    assert "oneOf" in said_with_any_of({"oneOf": branches})  # a number would meet both


@pytest.mark.parametrize("branches", [[{"type": "integer"}, {"type": "number"}], [CAT, CAT], [CAT, {"type": "object"}]])
def test_branches_that_may_overlap_are_refused_by_name(branches: list[Any]) -> None:
    schema = {"type": "object", "properties": {"a": {"oneOf": branches}}, "required": ["a"], "$defs": PET}
    with pytest.raises(ConstraintRefused, match="'oneOf'"):
        accepts(schema, {"a": {}})


def test_what_is_beside_a_one_of_stays() -> None:
    schema = {"oneOf": [{"type": "null"}, CAT], "anyOf": [{"maxLength": 1}], "allOf": [{"title": "a"}], "$defs": PET}
    changed = said_with_any_of(schema)
    assert changed["allOf"] == [{"title": "a"}, {"anyOf": schema["oneOf"]}]
    assert changed["anyOf"] == schema["anyOf"]


@example({"oneOf": [{"type": "null"}], "anyOf": 1, "allOf": 1})
@given(st.dictionaries(st.sampled_from(KEYWORDS), st.deferred(lambda: SCHEMAS), max_size=5))
def test_what_is_no_schema_is_left_to_be_refused(schema: dict[str, Any]) -> None:
    said_with_any_of(schema)


def test_comparing_ends_however_references_lead() -> None:
    names = [f"n{number}" for number in range(200)]
    node = {"type": "object", "properties": {name: {"$ref": "#/$defs/node"} for name in names}, "required": names}
    schema = {"oneOf": [{"$ref": "#/$defs/node"}, {"$ref": "#/$defs/node"}], "$defs": {"node": node}}
    assert "oneOf" in said_with_any_of(schema)


VALUES = st.recursive(
    st.sampled_from([None, True, False, 0, 1, 1.0, "a", "b", [], {}]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("kl"), inner, max_size=2),
    max_leaves=4,
)
TYPES = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])
BRANCHES = st.recursive(
    st.builds(lambda name: {"type": name}, TYPES)
    | st.builds(lambda value: {"const": value}, VALUES)
    | st.builds(lambda values: {"enum": values}, st.lists(VALUES, min_size=1, max_size=3)),
    lambda inner: st.builds(
        lambda members, required, kind: {"properties": members, "required": required} | kind,
        st.dictionaries(st.sampled_from("kl"), inner, max_size=2),
        st.lists(st.sampled_from("kl"), max_size=2),
        st.sampled_from([{}, {"type": "object"}]),
    ),
    max_leaves=4,
)


@given(st.lists(BRANCHES, min_size=1, max_size=3), VALUES)
def test_the_same_values_meet_it(branches: list[Any], value: Any) -> None:
    schema = {"oneOf": branches}
    validator = jsonschema.Draft202012Validator
    assert validator(schema).is_valid(value) == validator(said_with_any_of(schema)).is_valid(value)
