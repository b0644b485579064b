"""What is read and changed in a schema before it is compiled, and nothing else."""

from __future__ import annotations

import copy
import json
import time

import jsonschema_rs
import llguidance
import pytest

from engine.protocol.output_format import Constraint
from engine.structured.closing import find_close
from engine.structured.compile import compile_matcher, words_of
from engine.structured.json_schema import (
    LARGEST_NUMBER,
    depth_of,
    least_chars_of_parts,
    with_finite_numbers,
    words_of_patterns,
)
from engine.structured.token_view import TokenView, read_token_view
from tests.engine.structured.schemas import INTEGER, SCHEMAS
from tests.engine.structured.speaker import SPARK

NUMBER = {"type": "number"}


@pytest.fixture(scope="module")
def view() -> TokenView:
    return read_token_view(SPARK, 4096, (0, 2))


def accepts(matcher: llguidance.LLMatcher, view: TokenView, text: str) -> bool:
    token_ids = view.tokenizer.tokenize_str(text)
    return matcher.try_consume_tokens(token_ids) == len(token_ids) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("text", "is_accepted"),
    [("-2.50", True), ("0.000001", True), ("999999999999999", True), ("1e5", False), ("1E999", False)],
)
def test_numbers_are_written_out(view: TokenView, text: str, is_accepted: bool) -> None:
    for schema, around in [(NUMBER, "{}"), ({"type": "array", "items": {"anyOf": [NUMBER]}}, "[{}]")]:
        matcher = compile_matcher(Constraint("json_schema", json.dumps(schema)), view)
        assert accepts(matcher, view, around.replace("{}", text)) is is_accepted
    assert accepts(compile_matcher(Constraint("json_object"), view), view, f'{{"a":[{text}]}}') is is_accepted


def test_a_caller_s_own_bounds_stay() -> None:
    bounded = with_finite_numbers({"type": "number", "minimum": 10**20})
    assert (bounded["minimum"], bounded["maximum"]) == (10**20, 10**20)
    assert with_finite_numbers({"type": ["number", "null"], "exclusiveMaximum": 3}) == {
        "type": ["number", "null"],
        "exclusiveMaximum": 3,
        "minimum": -LARGEST_NUMBER,
    }


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
def test_what_is_no_unbounded_number_stays_as_it_is(schema: dict[str, object]) -> None:
    assert with_finite_numbers(schema) == schema


def test_the_caller_s_schema_is_not_changed_and_every_text_still_meets_it() -> None:
    for schema in SCHEMAS.values():
        before = copy.deepcopy(schema)
        narrower = with_finite_numbers(schema)
        assert schema == before
        jsonschema_rs.validator_for(narrower)


def test_a_number_is_found_wherever_a_schema_can_be() -> None:
    for place in [
        {"properties": {"a": NUMBER}},
        {"patternProperties": {"a": NUMBER}},
        {"additionalProperties": NUMBER},
        {"prefixItems": [NUMBER]},
        {"oneOf": [{"allOf": [NUMBER]}]},
        {"$defs": {"a": {"items": NUMBER}}},
    ]:
        assert str(LARGEST_NUMBER) in json.dumps(with_finite_numbers(place))


def test_words_of_patterns_are_what_a_text_may_have_to_spell() -> None:
    schema = {
        "properties": {"a": {"type": "string", "pattern": "^.*@example\\.com$"}},
        "patternProperties": {"[a-z]cole": {"items": {"pattern": "x|yes"}}},
        "const": {"pattern": "never"},
    }
    words = words_of_patterns(schema)
    assert {"cole", "yes"} <= set(words)
    assert any("example" in word for word in words)
    assert "never" not in words


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"enum": ["long one", "b"]}, '"b"'),
        ({"type": "object", "properties": {"ab": {"type": "integer"}}, "required": ["ab"]}, '{"ab":0,}'),
        ({"type": "array", "items": {"type": "boolean"}, "minItems": 2}, "[true,true,]"),
        ({"anyOf": [{"const": "abcdef"}, {"type": "null"}]}, '"abcdef"'),  # the branch itself is a part
        ({"properties": {"rare": {"type": "string", "minLength": 9}}}, '"' + 18 * "x" + '"'),
        ({"type": "array", "items": {"$ref": "#/$defs/a"}, "minItems": 1}, '["abc",]'),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, None),
        ({"$ref": "https://example.com/a"}, "0"),
        ({"type": "array", "minItems": 10**9}, None),
    ],
)
def test_the_part_that_takes_most_to_fill_in_is_sized_in_bounds(schema: dict[str, object], text: str | None) -> None:
    found = least_chars_of_parts({"$defs": {"a": {"const": "abc"}}, "items": schema})
    assert found == max(len(text), len('"abc"')) if text is not None else 1 <= found < 10**6


def test_a_whole_schema_is_a_part_only_where_it_refers_to_itself() -> None:
    """What the whole takes is known from the first close; a part adds to it only when it is begun."""
    whole: dict[str, object] = {"type": "object", "properties": {"a": {"const": "x"}}, "required": ["a"]}
    assert least_chars_of_parts(whole) == len('"x"')
    assert least_chars_of_parts(whole | {"items": {"$ref": "#"}}) == len('{"a":"x",}')
    assert least_chars_of_parts({"const": "long"}) == 0


def test_sizing_is_quick_whatever_refers_to_what() -> None:
    names = [f"d{level}" for level in range(900)]
    many = {f"k{index}": {"$ref": "#/$defs/{}"} for index in range(20)}
    defs = {
        name: {
            "type": "object",
            "properties": {key: {"$ref": f"#/$defs/{following}"} for key in many},
            "required": list(many),
        }
        for name, following in zip(names, [*names[1:], names[0]], strict=True)
    }
    started = time.thread_time()
    assert 1 <= least_chars_of_parts({"$defs": defs, "$ref": "#/$defs/d0"}) <= 4_000
    assert time.thread_time() - started < 1


def test_depth_counts_objects_and_lists() -> None:
    assert [depth_of(value) for value in (1, {}, [[]], {"a": [{"b": 1}]})] == [0, 1, 2, 3]


OLD_EMAIL = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
DURATION = r"^P(?:(\d+W)|(?!.*W)(?=\d|T\d)(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+([.,]\d+)?S)?)?)$"
CODE = r"^(?=.*[A-Z])(?=.*\d)[A-Za-z\d]{3,8}$"
NUMBERS = {"type": "object", "additionalProperties": INTEGER}
DEMANDS = [  # what writers of schemas write; values that meet it, values that do not
    ({"type": "string", "pattern": OLD_EMAIL, "format": "email"}, ["a.b@c.de"], [".a@c.de", "a..b@c.de", "a@c.d"]),
    ({"type": "string", "pattern": DURATION}, ["P1W", "P1Y2D", "PT1,5S", "P1MT2H3S"], ["P", "PT", "P1DT", "P1W1D"]),
    ({"type": "string", "pattern": CODE}, ["aB1", "Zz999999"], ["ab1", "aBc", "B1", "aB1456789"]),
    ({"type": "string", "pattern": "^[a-z]+$", "format": "cuid2"}, ["az"], ["", "9"]),
    ({"type": "string", "format": "includes", "allOf": [{"pattern": "^a.*"}, {"pattern": "c"}]}, ["abc"], ["ab", "c"]),
    ({"type": "string", "format": "password"}, ["", "x"], []),
    (NUMBERS | {"propertyNames": {"type": "string"}}, [{}, {"a": 1}], [{"a": "b"}]),
    (NUMBERS | {"propertyNames": {"enum": ["p", "q"]}}, [{}, {"p": 1, "q": 2}], [{"r": 1}, {"p": "x"}]),
    (NUMBERS | {"propertyNames": {"pattern": "^[a-z]{2}$"}}, [{}, {"ab": 1}], [{"a": 1}, {"ab": "x"}]),
]  # fmt: skip


@pytest.mark.parametrize(("demand", "good", "bad"), DEMANDS, ids=lambda value: json.dumps(value)[:60])
def test_what_the_parser_library_has_no_words_for_is_said_in_others(
    view: TokenView, demand: dict[str, object], good: list[object], bad: list[object]
) -> None:
    constraint = Constraint("json_schema", json.dumps(demand))
    matcher = compile_matcher(constraint, view)
    assert find_close(matcher, view, words_of(constraint)) is not None
    for value in good + bad:
        assert accepts(matcher.deep_copy(), view, json.dumps(value)) == (value in good), value
