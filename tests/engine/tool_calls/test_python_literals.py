"""Python's literals become JSON, whatever their split; anything else is none, and nothing is evaluated."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.tool_calls.python_literals import PythonReader, json_of_python

_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(_values, st.integers(1, 4))
def test_repr_of_a_value_is_read_back_equal(value: object, size: int) -> None:
    text = repr(value) + ")"
    reader, at = PythonReader(), 0
    while at < len(text) and not reader.is_complete:
        at += reader.push(text[at : at + size])
        assert not reader.is_rejected
    assert (at, json.loads(reader.json)) == (len(text) - 1, value)


@given(_values)
def test_json_literals_are_read(value: object) -> None:
    found = json_of_python(json.dumps(value))
    assert found is not None
    assert json.loads(found) == value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(1, 2,)", [1, 2]),
        ("{'a': (True, None),}", {"a": [True, None]}),
        (r"'it\'s \x41\u00fc\U0001f600 \q\ue000'", "it's A\u00fc\U0001f600 \\q\ue000"),
        (r"'\ud83d\ude00 \ud83d'", "\U0001f600 \ufffd"),
        ("[]", []),
        ("-1.5e3", -1500.0),
    ],
)
def test_python_specific_literals_are_read(text: str, expected: object) -> None:
    found = json_of_python(text)
    assert found is not None
    assert json.loads(found) == expected


@pytest.mark.parametrize(
    "text",
    ["", "x", "f(1)", "1 2", "[1", "{1: 2}", "{'a'}", "[,]", "1_000", "0x1f", "nan", "'a' 'b'", "[1]]", "b'a'", "]",
     "(" * 99]
)  # fmt: skip
def test_text_that_is_not_a_literal_is_rejected(text: str) -> None:
    assert json_of_python(text) is None
