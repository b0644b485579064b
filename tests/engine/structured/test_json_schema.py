"""Changes to a JSON schema before it is compiled."""

from __future__ import annotations

import copy
import json
from typing import Any

import jsonschema_rs
import llguidance
import pytest

from engine.protocol.output_format import Constraint
from engine.structured.compile import compile_matcher
from engine.structured.json_schema import LARGEST_NUMBER, adapt_schema, depth_of
from engine.structured.refusal import ConstraintRefused
from engine.structured.vocabulary import Vocabulary, read_vocabulary
from tests.engine.structured.schemas import INTEGER, SCHEMAS
from tests.engine.structured.spark_engine import SPARK

NUMBER = {"type": "number"}


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return read_vocabulary(SPARK, 4096, (0, 2))


def matcher_of(schema: dict[str, Any], vocabulary: Vocabulary) -> llguidance.LLMatcher:
    return compile_matcher(Constraint("json_schema", json.dumps(schema)), vocabulary)


def accepts(matcher: llguidance.LLMatcher, vocabulary: Vocabulary, text: str) -> bool:
    token_ids = vocabulary.tokenizer.tokenize_str(text)
    return matcher.try_consume_tokens(token_ids) == len(token_ids) and matcher.is_accepting()


# ── numbers ──


@pytest.mark.parametrize(
    ("text", "is_accepted"),
    [("-2.50", True), ("0.000001", True), ("999999999999999", True), ("1e5", False), ("1E999", False)],
)
def test_numbers_have_no_exponents(vocabulary: Vocabulary, text: str, is_accepted: bool) -> None:
    for schema, around in [(NUMBER, "{}"), ({"type": "array", "items": {"anyOf": [NUMBER]}}, "[{}]")]:
        assert accepts(matcher_of(schema, vocabulary), vocabulary, around.replace("{}", text)) is is_accepted
    any_object = compile_matcher(Constraint("json_object"), vocabulary)
    assert accepts(any_object, vocabulary, f'{{"a":[{text}]}}') is is_accepted


def test_unbounded_number_gets_bounds_and_keeps_its_own() -> None:
    assert adapt_schema(NUMBER) == {**NUMBER, "minimum": -LARGEST_NUMBER, "maximum": LARGEST_NUMBER}
    assert adapt_schema({**NUMBER, "minimum": 1e17})["maximum"] == 1e17
    assert adapt_schema({**NUMBER, "exclusiveMaximum": -1e17})["minimum"] == -1e17


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer"},
        {"type": "number", "multipleOf": 0.5},
        {"type": "number", "enum": [1e300]},
        {"enum": [{"type": "number"}]},
        {"const": {"type": "number"}},
        {"type": "object", "properties": {"type": {"const": "number"}}},
        {"default": {"type": "number"}, "examples": [{"type": "number"}]},
    ],
)
def test_schema_without_unbounded_numbers_is_unchanged(schema: dict[str, object]) -> None:
    assert adapt_schema(schema) == schema


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": NUMBER}},
        {"patternProperties": {"a": NUMBER}},
        {"additionalProperties": NUMBER},
        {"prefixItems": [NUMBER]},
        {"oneOf": [{"allOf": [NUMBER]}]},
        {"$defs": {"a": {"items": NUMBER}}},
    ],
)
def test_numbers_are_bounded_wherever_a_schema_may_stand(schema: dict[str, object]) -> None:
    assert str(LARGEST_NUMBER) in json.dumps(adapt_schema(schema))


def test_adaptation_copies_the_schema_and_gives_a_valid_one() -> None:
    for schema in SCHEMAS.values():
        before = copy.deepcopy(schema)
        adapted = adapt_schema(schema)
        assert schema == before
        jsonschema_rs.validator_for(adapted)


def test_depth_counts_objects_and_lists() -> None:
    assert [depth_of(value) for value in (1, {}, [[]], {"a": [{"b": 1}]})] == [0, 1, 2, 3]


# ── keywords that llguidance lacks, as generators of schemas write them ──

ZOD_EMAIL = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
NUMBERS = {"type": "object", "additionalProperties": INTEGER}
CASES = [  # schema, values that match, values that do not
    ({"type": "string", "pattern": ZOD_EMAIL, "format": "email"}, ["a.b@c.de"], [".a@c.de", "a..b@c.de", "a"]),
    ({"type": "string", "pattern": "^[a-z]+$", "format": "cuid2"}, ["az"], ["", "9"]),
    ({"type": "string", "format": "includes", "allOf": [{"pattern": "^a.*"}, {"pattern": "c"}]}, ["abc"], ["ab", "c"]),
    ({"type": "string", "format": "password"}, ["", "x"], []),
    (NUMBERS | {"propertyNames": {"type": "string"}}, [{}, {"a": 1}], [{"a": "b"}]),
    (NUMBERS | {"propertyNames": {"enum": ["p", "q"]}}, [{}, {"p": 1, "q": 2}], [{"r": 1}, {"p": "x"}]),
    (NUMBERS | {"propertyNames": {"pattern": "^[a-z]{2}$"}}, [{}, {"ab": 1}], [{"a": 1}, {"ab": "x"}]),
]


@pytest.mark.parametrize(("schema", "good", "bad"), CASES, ids=lambda value: json.dumps(value)[:60])
def test_schema_of_a_generator_is_enforced(
    vocabulary: Vocabulary, schema: dict[str, Any], good: list[object], bad: list[object]
) -> None:
    matcher = matcher_of(schema, vocabulary)
    for value in good + bad:
        assert accepts(matcher.deep_copy(), vocabulary, json.dumps(value)) == (value in good), value


@pytest.mark.parametrize("pattern", [r"^(?!admin$)[a-z]+$", r"^(?=.*\d).{8,}$", r"(?<!a)b", r"^((?!foo).)*$"])
def test_pattern_with_look_around_is_refused_by_name(vocabulary: Vocabulary, pattern: str) -> None:
    for constraint in (
        Constraint("json_schema", json.dumps({"type": "string", "pattern": pattern})),
        Constraint("regex", pattern),
    ):
        with pytest.raises(ConstraintRefused, match="look-around, including look-ahead and look-behind"):
            compile_matcher(constraint, vocabulary)


# ── oneOf ──

CAT = {"type": "object", "properties": {"kind": {"const": "cat"}, "lives": INTEGER}, "required": ["kind"]}
DOG = {"type": "object", "properties": {"kind": {"enum": ["dog"]}, "toys": INTEGER}, "required": ["kind"]}
DEFINITIONS = {"cat": CAT, "dog": DOG}
CAT_REF, DOG_REF = ({"$ref": f"#/$defs/{name}"} for name in DEFINITIONS)


def union(*branches: dict[str, Any]) -> dict[str, Any]:
    value = {"oneOf": list(branches)}
    return {"type": "object", "properties": {"a": value}, "required": ["a"], "$defs": DEFINITIONS}


@pytest.mark.parametrize(
    ("branches", "good", "bad"),
    [
        ([{"type": "null"}, CAT], [None, {"kind": "cat", "lives": 9}], [{"kind": "dog"}, 3]),
        ([CAT, DOG], [{"kind": "cat"}, {"kind": "dog", "toys": 2}], [{"kind": "dog", "toys": "a"}, None]),
        ([INTEGER, {"type": "string"}], [1, "a"], [None]),
    ],
)
def test_one_of_with_disjoint_branches_is_enforced(
    vocabulary: Vocabulary, branches: list[Any], good: list[Any], bad: list[Any]
) -> None:
    matcher = matcher_of(union(*branches), vocabulary)
    for value in good + bad:
        text = json.dumps({"a": value})
        assert accepts(matcher.deep_copy(), vocabulary, text) == (value in good)


def test_one_of_by_reference_needs_a_discriminator(vocabulary: Vocabulary) -> None:
    schema = union(CAT_REF, DOG_REF)
    schema["properties"]["a"]["discriminator"] = {"propertyName": "kind"}
    matcher = matcher_of(schema, vocabulary)
    assert accepts(matcher.deep_copy(), vocabulary, '{"a":{"kind":"dog","toys":2}}')
    assert not accepts(matcher, vocabulary, '{"a":{"kind":"dog","toys":"a"}}')


@pytest.mark.parametrize("branches", [[INTEGER, NUMBER], [CAT, CAT], [CAT_REF, DOG_REF]])
def test_one_of_with_overlapping_branches_is_refused_by_name(vocabulary: Vocabulary, branches: list[Any]) -> None:
    with pytest.raises(ConstraintRefused, match="'oneOf' with branches that overlap"):
        matcher_of(union(*branches), vocabulary)


@pytest.mark.parametrize("branches", [1, [1], [{"$ref": 1}], [{"type": ["string"]}], [{"$ref": "#/nowhere"}]])
def test_malformed_one_of_is_left_for_llguidance_to_refuse(branches: Any) -> None:
    assert adapt_schema({"oneOf": branches, "propertyNames": 1, "pattern": 1}) == {
        "oneOf": branches, "propertyNames": 1, "pattern": 1,
    }  # fmt: skip
