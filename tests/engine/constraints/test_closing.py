"""The shortest way out that is found from any state: it ends in a match, and leaves the matcher alone."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.constraints.closing import closes, find_close
from engine.constraints.compile import compile_matcher, largest_step_of, words_of
from engine.constraints.hold import Hold
from engine.constraints.token_view import read_token_view
from engine.protocol.tasks import Constraint
from tests.engine.constraints.schemas import INTEGER, SCHEMAS, STRING, record
from tests.engine.constraints.speaker import SPARK

VIEW = read_token_view(SPARK, 4096, (0, 2))


def schema(value: object) -> Constraint:
    return Constraint("json_schema", json.dumps(value))


@pytest.mark.parametrize(
    ("constraint", "said", "close"),
    [
        (schema(record(a=STRING)), '{"a": "hello', '"}'),
        (schema(record(a=STRING, b=INTEGER)), '{"a": "x"', ',"b":0}'),
        (schema({"type": "array", "items": record(a=INTEGER)}), '[{"a": 12}, {', '"a":0}]'),
        (schema({"type": "array", "items": INTEGER, "minItems": 3}), "[1", ",0,0]"),
        (schema(SCHEMAS["only optional keys"]), "", "{}"),
        (schema({"type": "integer", "minimum": 500, "maximum": 501}), "", "500"),
        (Constraint("json_object"), '{"a": [1, {"b": "c', '"}]}'),
        (Constraint("regex", "[a-z]+@[a-z]+"), "abc", "@a"),
        (Constraint("regex", "[ab]*"), "ab", ""),
        (Constraint("choice", '["a much longer one", "no"]'), "a mu", "ch longer one"),
        (Constraint("grammar", 'start: <tool_call> "(" TEXT ")" </tool_call>\nTEXT: /[^()]*/'), "", None),
    ],
)
def test_a_close_is_what_is_missing(constraint: Constraint, said: str, close: str | None) -> None:
    matcher = compile_matcher(constraint, VIEW)
    assert matcher.consume_tokens(VIEW.tokenizer.tokenize_str(said))
    found = find_close(matcher, VIEW)
    assert found is not None
    assert closes(matcher, found)
    if close is not None:
        assert VIEW.tokenizer.decode_str(found) == close
        assert len(found) <= len(VIEW.tokenizer.greedy_tokenize(close))
    else:
        assert [VIEW.tokenizer.is_special_token(token_id) for token_id in (found[0], found[-1])] == [True, True]


def test_a_pattern_s_own_words_are_spelled() -> None:
    constraint = schema({"type": "object", "patternProperties": {"[a-z]cole": True}, "additionalProperties": False})
    matcher = compile_matcher(constraint, VIEW)
    assert matcher.consume_tokens(VIEW.tokenizer.tokenize_str('{"some '))
    assert find_close(matcher, VIEW) is None
    found = find_close(matcher, VIEW, words_of(constraint))
    assert found is not None
    assert VIEW.tokenizer.decode_str(found).startswith('acole":')


def test_where_nothing_ends_none_is_found_in_bounded_time() -> None:
    for constraint in [
        schema({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}),
        schema({"type": "string", "minLength": 10**8}),
    ]:
        assert find_close(compile_matcher(constraint, VIEW), VIEW, max_choices=500) is None


@given(name=st.sampled_from(sorted(SCHEMAS)), data=st.data())
def test_any_text_that_a_schema_allows_so_far_can_be_closed(name: str, data: st.DataObject) -> None:
    """A random walk through what the mask allows, closed at every step, and never changed by the search."""
    constraint = schema(SCHEMAS[name])
    matcher = compile_matcher(constraint, VIEW)
    said: list[int] = []
    for _ in range(data.draw(st.integers(0, 25))):
        if matcher.is_stopped():
            break
        mask = matcher.compute_bitmask()
        close = find_close(matcher, VIEW, words_of(constraint))
        assert close is not None, VIEW.tokenizer.decode_str(said)
        assert closes(matcher, close)
        assert matcher.compute_bitmask() == mask
        allowed = [i for i in range(VIEW.num_tokens) if mask[i >> 3] >> (i & 7) & 1 and i not in VIEW.eos_token_ids]
        if not allowed:
            break
        said.append(data.draw(st.sampled_from(allowed)))
        assert matcher.consume_token(said[-1])


@given(name=st.sampled_from(sorted(SCHEMAS)), spare=st.integers(0, 60), data=st.data())
def test_a_hold_closes_in_time_whatever_is_drawn(name: str, spare: int, data: st.DataObject) -> None:
    """Whoever draws does so at random; the hold has the last word where the room is short."""
    constraint = schema(SCHEMAS[name])
    matcher = compile_matcher(constraint, VIEW)
    close = find_close(matcher, VIEW)
    assert close is not None
    hold = Hold(matcher, close, VIEW, words_of(constraint), largest_step_of(constraint))
    said: list[int] = []
    while (remaining := len(close) + spare - len(said)) > 0 and not hold.is_over:
        if hold.slack <= 0:
            hold.review(remaining)
        mask = hold.matcher.compute_bitmask()
        (hold.can_go_on,) = VIEW.can_go_on(np.frombuffer(mask, dtype=np.int32)[None])
        allowed = [i for i in range(VIEW.num_tokens) if mask[i >> 3] >> (i & 7) & 1]
        said.append(hold.take(data.draw(st.sampled_from(allowed)), remaining))
        said += hold.forced
        hold.spend(len(hold.forced))
        assert not hold.is_failed
    assert len(said) <= len(close) + spare
    assert closes(compile_matcher(constraint, VIEW), said)
    assert hold.is_match, VIEW.tokenizer.decode_str(said)


def test_a_large_part_is_not_opened_where_it_could_not_be_closed() -> None:
    """The same wish, a long note and then the large part, with ever less room for it."""
    constraint = schema(SCHEMAS["large optional parts"])
    opened = VIEW.tokenizer.greedy_tokenize('"detail":{"identification":"')
    fates = set()
    for size in range(10, 90, 4):
        matcher = compile_matcher(constraint, VIEW)
        hold = Hold(matcher, find_close(matcher, VIEW), VIEW, words_of(constraint), largest_step_of(constraint))
        wish = VIEW.tokenizer.greedy_tokenize('{"note":"') + VIEW.tokenizer.greedy_tokenize("Q") * size
        wish += VIEW.tokenizer.greedy_tokenize('",') + opened
        said: list[int] = []
        while (remaining := 110 - len(said)) > 0 and not hold.is_over:
            if hold.slack <= 0:
                hold.review(remaining)
            (hold.can_go_on,) = VIEW.can_go_on(np.frombuffer(hold.matcher.compute_bitmask(), dtype=np.int32)[None])
            wanted = wish[0] if wish else -1
            if hold.matcher.validate_tokens([wanted] if wanted >= 0 else []) != 1:
                close = find_close(hold.matcher, VIEW)
                wanted = close[0] if close else VIEW.eos_token_ids[0]
            for token_id in [hold.take(wanted, remaining), *hold.forced]:
                said.append(token_id)
                wish = wish[1:] if wish and token_id == wish[0] else []
            hold.spend(len(hold.forced))
        text = VIEW.tokenizer.decode_str(said)
        assert hold.is_match, (size, text)
        fates.add('"detail"' in text)
    assert fates == {True, False}
