"""Closing of JSON text at the token limit: strings, lists and objects are ended, and no value is invented."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.protocol.output_format import Constraint
from engine.structured.compile import compile_matcher
from engine.structured.grammar_matcher import REJECTED, GrammarMatcher
from engine.structured.json_closing import closers_of
from engine.structured.vocabulary import read_vocabulary
from tests.engine.structured.schemas import INTEGER, STRING, record
from tests.engine.structured.spark_engine import SPARK

VOCABULARY = read_vocabulary(SPARK, 4096, (0, 2))
OPEN: dict[str, Any] = {"type": "object", "properties": {"a": STRING, "b": INTEGER}}


@pytest.mark.parametrize(
    ("text", "closers"),
    [
        ("", ""),
        ('"', '"'),
        ('{"a": [1, {"b": "x', '"}]}'),
        ('{"a": "} ] \\" {', '"}'),
        ('["\\\\", "', '"]'),
        ('[["a"], {"b": {}', "}]"),
        ("[1, 2]", ""),
    ],
)
def test_open_strings_lists_and_objects_are_closed(text: str, closers: str) -> None:
    assert closers_of(text.encode()) == closers


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.text('ab"\\{}[]é'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('a"\\}'), inner, max_size=3),
    max_leaves=8,
)


@given(VALUES)
def test_whole_json_text_has_nothing_to_close(value: Any) -> None:
    assert closers_of(json.dumps(value).encode()) == ""


def generate(schema: dict[str, Any], text: str, max_tokens: int) -> tuple[str, bool]:
    """Feed the tokens of `text` to a matcher with a limit. Returns the text written and True if it matches."""
    matcher = compile_matcher(Constraint("json_schema", json.dumps(schema)), VOCABULARY)
    state = GrammarMatcher(matcher, VOCABULARY, closes_json=True)
    written: list[int] = []
    for token_id in VOCABULARY.tokenizer.greedy_tokenize(text):
        if state.jump_forward and state.jump_forward[0] == token_id:
            accepted = token_id
            state.advance(1)
        else:
            accepted = state.accept(token_id, max_tokens - len(written))
        assert accepted != REJECTED
        written.append(accepted)
        if accepted != token_id:
            written += state.jump_forward
            state.advance(len(state.jump_forward))
            break
        if state.is_complete or len(written) == max_tokens:
            break
    assert len(written) <= max_tokens
    return VOCABULARY.tokenizer.decode_bytes(written).decode(errors="replace"), state.is_match


def num_tokens(text: str) -> int:
    return len(VOCABULARY.tokenizer.greedy_tokenize(text))


LONG = json.dumps({"a": "the quick brown fox jumps over the lazy dog " * 3})
ITEMS = json.dumps([f"item number {number}" for number in range(20)])


@pytest.mark.parametrize("max_tokens", [12, 20, 33])
def test_open_string_is_ended_at_the_limit(max_tokens: int) -> None:
    text, is_match = generate(OPEN, LONG, max_tokens)
    assert is_match
    value = json.loads(text)
    assert json.loads(LONG)["a"].startswith(value["a"])
    assert num_tokens(text) > max_tokens - 4


@pytest.mark.parametrize("max_tokens", [20, 31, 42])
def test_list_is_ended_before_an_item_that_does_not_fit(max_tokens: int) -> None:
    text, is_match = generate({"type": "array", "items": STRING}, ITEMS, max_tokens)
    assert is_match
    value = json.loads(text)
    assert value[:-1] == json.loads(ITEMS)[: len(value) - 1]


def test_text_that_fits_is_not_changed() -> None:
    for text in (LONG, '{"a": "x", "b": 12345}'):
        assert generate(OPEN, text, num_tokens(text)) == (text, True)


def test_missing_required_property_is_not_invented() -> None:
    text, is_match = generate(record(a=STRING, b=INTEGER), LONG[:-1] + ', "b": 1}', 20)
    assert not is_match
    assert "b" not in text.partition('"a"')[2].replace("brown", "")


def test_number_is_not_cut() -> None:
    numbers = json.dumps([10**12 + number for number in range(9)])
    for max_tokens in range(16, 48):
        text, is_match = generate({"type": "array", "items": INTEGER}, numbers, max_tokens)
        if is_match:
            value = json.loads(text)
            assert value == json.loads(numbers)[: len(value)]
