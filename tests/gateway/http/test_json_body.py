"""JSON bodies: accepted bodies are read like the standard parser reads them; all others are rejected with a reason."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.errors import Reason, Refusal
from gateway.http import json_body


def refusal_of(body: bytes) -> Reason:
    with pytest.raises(Refusal) as caught:
        json_body.parse(body)
    return caught.value.reason


BAD = {
    "cut": b'{"a": [1, 2',
    "trailing text": b'{"a": 1} x',
    "two documents": b'{"a": 1}{"b": 2}',
    "a comment": b'{"a": 1 /* b */}',
    "single quotes": b"{'a': 1}",
    "no quotes": b"{a: 1}",
    "a trailing comma": b'{"a": 1,}',
    "a form": b"prompt=hello",
    "NaN": b'{"a": NaN}',
    "Infinity": b'{"a": -Infinity}',
    "out of range": b'{"a": 1e400}',
    "a long number": b'{"a": 1.00000000000000000001}',
    "a long integer": b'{"a": 123456789012345678901}',
    "a repeated key": b'{"a": 1, "a": 2}',
    "a key repeated by an escape": b'{"a": 1, "\\u0061": 2}',
    "a repeated key far inside": b'{"a": [{"b": {"c": 1, "c": 1}}]}',
    "too deep": b'{"a":' * 65 + b"1" + b"}" * 65,
    "too deep in arrays": b'{"a":' + b"[" * 64 + b"]" * 64 + b"}",
    "absurdly deep": b"[" * 100_000,
    "too many members": json.dumps({str(i): i for i in range(201)}).encode(),
    "too many members beside a bias": json.dumps({"a": {str(i): i for i in range(201)}, "logit_bias": {}}).encode(),
    "too many elements": json.dumps({"a": [1] * 100_001}).encode(),
    "too many empty strings": b'{"a":[' + b'"",' * 500_000 + b'""]}',
    "invalid UTF-8": b'{"a": "\xff"}',
    "a surrogate in UTF-8": b'{"a": "\xed\xa0\x80"}',
    "a lone high surrogate": b'{"a": "\\ud800"}',
    "a lone high surrogate before text": b'{"a": "\\ud800 and more text"}',
    "a lone low surrogate": b'{"a": "\\udc00"}',
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "UTF-16 without a mark": '{"a": 1}'.encode("utf-16-le"),
    "a control character": b'{"a": "\x01"}',
    "a null byte": b'{"a": 1}\x00',
}


@pytest.mark.parametrize("body", BAD.values(), ids=BAD.keys())
def test_invalid_or_oversized_json_is_rejected(body: bytes):
    assert refusal_of(body) is Reason.BODY_INVALID


@pytest.mark.parametrize("body", [b"", b" ", b" \r\n\t ", b"\xef\xbb\xbf", b"\xef\xbb\xbf  "])
def test_empty_body_is_missing(body: bytes):
    assert refusal_of(body) is Reason.BODY_MISSING


@pytest.mark.parametrize("body", [b"[]", b'"text"', b"1", b"null", b"true", b"[{}]"])
def test_body_must_be_an_object(body: bytes):
    assert refusal_of(body) is Reason.INPUT_INVALID


@pytest.mark.parametrize(
    ("body", "location"),
    [
        (b'{"a": "\\"b\\": 1", "top_k" : 123456789012345678901}', " in 'top_k'"),
        (b'{"logit_bias": {"5": -0.12345678901234567890}}', ""),
        (b"[123456789012345678901]", ""),
    ],
)
def test_too_long_number_is_rejected_with_its_limit_and_field(body: bytes, location: str):
    with pytest.raises(Refusal) as refused:
        json_body.parse(body)
    assert refused.value.detail == f"a number of more than 20 characters{location}"


def test_too_many_biases_are_rejected_with_their_limit():
    with pytest.raises(Refusal) as refused:
        json_body.parse(json.dumps({"logit_bias": {str(i): i for i in range(301)}}).encode())
    assert refused.value.reason is Reason.INPUT_INVALID
    assert "'/logit_bias' must have <= 300" in refused.value.detail


GOOD = {
    "empty object": b"{}",
    "byte order mark": b'\xef\xbb\xbf{"a": 1}',
    "escapes": rb'{"a\"b": "\\", "c": "\\\"", "d\\": "{[:,"}',
    "deep enough": b'{"a":' * 63 + b"{}" + b"}" * 63,
    "many biases": json.dumps({"inputs": {"logit_bias": {str(i): i for i in range(300)}}}).encode(),
    "many members": json.dumps({str(i): i for i in range(200)}).encode(),
    "same key in two objects": b'{"a": {"b": 1}, "c": {"b": 1}}',
    "brackets in text": json.dumps({"a": "[{" * 1000}).encode(),
    "a number of 20 characters": b'{"a": 12345678901234567890}',
    "pairs of surrogates": b'{"a": "\\ud83d\\ude00"}',
    "control characters, escaped": b'{"a": "\\u0000\\u202e\\u0001"}',
}


@pytest.mark.parametrize("body", GOOD.values(), ids=GOOD.keys())
def test_accepted_bodies_equal_those_of_the_standard_parser(body: bytes):
    assert json_body.parse(body) == json.loads(body.decode("utf-8-sig"))


_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**18), 10**18) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), _values, max_size=5), st.booleans(), st.sampled_from([None, 2]))
def test_every_ordinary_object_is_returned_unchanged(value: dict, is_ascii: bool, indent: int | None):
    body = json.dumps(value, ensure_ascii=is_ascii, indent=indent).encode("utf-8", "replace")
    assert json_body.parse(body) == json.loads(body)


@given(st.binary(max_size=60) | st.text('{}[]",:\\ua1e0.-+ntf ', max_size=60).map(str.encode))
@example(b'{"\\":1,"b":2}')
@example(b'{"a":"\\\\","a":1}')
def test_any_accepted_bytes_equal_those_of_the_standard_parser(body: bytes):
    try:
        value = json_body.parse(body)
    except Refusal:
        return
    pairs_seen = []
    json.loads(body.decode("utf-8-sig"), object_pairs_hook=lambda pairs: pairs_seen.append(pairs) or dict(pairs))
    assert value == json.loads(body.decode("utf-8-sig"))
    assert all(len(dict(pairs)) == len(pairs) for pairs in pairs_seen)
