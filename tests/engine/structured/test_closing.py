"""The shortest way out that is found from any state: it ends in a match, and leaves the matcher alone."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.protocol.output_format import Constraint
from engine.structured.closing import Closing, closes, find_close
from engine.structured.closing_bound import bound_of, growth
from engine.structured.compile import compile_matcher, ends_itself, num_endings_of, probe_of, words_of
from engine.structured.hold import REFUSED, Hold
from engine.structured.json_schema import has_free_strings_only
from engine.structured.token_view import read_token_view
from engine.structured.worker import judge
from tests.engine.structured.schemas import INTEGER, SCHEMAS, STRING, record
from tests.engine.structured.speaker import SPARK

VIEW = read_token_view(SPARK, 4096, (0, 2))


def count(text: str) -> int:
    return len(VIEW.tokenizer.greedy_tokenize(text))


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


@pytest.mark.parametrize(
    ("pattern", "close"),
    [(".*=.*", '"="'), ("^(.*a){20}$", '"' + "a" * 20 + '"'), (".*[%&].*/", '"%&/"')],
)
def test_signs_that_a_pattern_asks_for_among_any_are_spelled(pattern: str, close: str) -> None:
    constraint = schema({"type": "string", "pattern": pattern})
    found = find_close(compile_matcher(constraint, VIEW), VIEW, words_of(constraint))
    assert found is not None
    assert VIEW.tokenizer.decode_str(found) == close


def test_the_signs_of_a_pattern_in_a_call_are_spelled_too() -> None:
    text = 'start: "<" call ">"\ncall: %json ' + json.dumps({"type": "string", "pattern": "^(.*a){20}$"})
    constraint = Constraint("grammar", text)
    matcher = compile_matcher(constraint, VIEW)
    assert find_close(matcher, VIEW, words_of(constraint)) is not None
    assert not words_of(Constraint("grammar", 'start: "a"'))


def test_what_ended_other_parts_is_still_spelled_first_where_a_text_needs_it() -> None:
    """A scheme's colon, after as many colons as there were keys."""
    constraint = schema(
        record(**{f"key{number}": STRING for number in range(12)}, uri={"type": "string", "format": "uri"})
    )
    found = find_close(compile_matcher(constraint, VIEW), VIEW, words_of(constraint))
    assert found is not None
    last = json.loads(VIEW.tokenizer.decode_str(found))["uri"]
    assert last.endswith(":")
    assert len(last) < 10


MANY = {f"field_{number}": STRING for number in range(100)}


@pytest.mark.parametrize(
    "constraint",
    [
        schema(record(**MANY)),
        schema({"$defs": {"a": record(**MANY)}, "$ref": "#/$defs/a"}),
        schema({"type": "array", "items": STRING, "minItems": 200}),
        schema({"type": "array", "items": record(a=STRING), "minItems": 90}),
        Constraint("grammar", f'start: "<" %json {json.dumps(record(**MANY))} ">"'),
    ],
    ids=["a hundred fields", "by reference", "a long list", "a long list of records", "in a call"],
)
def test_many_parts_that_must_be_there_are_closed_each_at_once(constraint: Constraint) -> None:
    matcher = compile_matcher(constraint, VIEW)
    found = find_close(matcher, VIEW, words_of(constraint), num_endings=num_endings_of(constraint))
    assert found is not None
    assert closes(matcher, found)
    assert '""' in VIEW.tokenizer.decode_str(found)[-10:]  # the last as short as the first
    assert not judge(constraint, VIEW)


def test_a_close_that_has_become_shorter_is_found() -> None:
    """What would have closed the text at first is longer than what is left of it, and closes it still."""
    constraint = schema({"type": "string", "pattern": "^(.*a){60}$"})
    hold = hold_of(constraint)
    close = find_close(hold.matcher, VIEW, words_of(constraint))
    assert close is not None
    num_tokens = len(close) - 8
    said: list[int] = []
    banana, other = (VIEW.tokenizer.greedy_tokenize(text) for text in (" banana", "b"))
    assert len(banana) == len(other) == 1  # three at once, and none
    wish = iter([*VIEW.tokenizer.greedy_tokenize('"'), *other * 20, *banana * 20, *other * 100])
    while (remaining := num_tokens - len(said)) > 0 and not hold.is_over:
        hold.prepare(remaining)
        if not hold.forced:
            said.append(hold.take(next(wish), remaining))
        said += hold.forced
        hold.spend(len(hold.forced))
    assert hold.is_match, VIEW.tokenizer.decode_str(said)


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
        for token_ids in (close, close[:-1], [*close, *close[-1:]]):
            is_end = matcher.is_stopped() and not token_ids
            assert is_end or closes(matcher, token_ids, VIEW.eos_token_ids) == closes(matcher, token_ids)
        assert not (ends_itself(constraint) and matcher.is_accepting())
        assert matcher.compute_bitmask() == mask
        allowed = [i for i in range(VIEW.num_tokens) if mask[i >> 3] >> (i & 7) & 1 and i not in VIEW.eos_token_ids]
        if not allowed:
            break
        said.append(data.draw(st.sampled_from(allowed)))
        assert matcher.consume_token(said[-1])


def hold_of(constraint: Constraint) -> Hold:
    matcher = compile_matcher(constraint, VIEW)
    return Hold(matcher.deep_copy(), Closing(constraint, matcher, VIEW), VIEW)


@given(name=st.sampled_from(sorted(SCHEMAS)), spare=st.integers(0, 60) | st.integers(60, 200), data=st.data())
def test_a_hold_closes_in_time_whatever_is_drawn(name: str, spare: int, data: st.DataObject) -> None:
    """Whoever draws does so at random; the hold has the last word where the room is short."""
    constraint = schema(SCHEMAS[name])
    hold = hold_of(constraint)
    close = find_close(hold.matcher, VIEW)
    assert close is not None
    said: list[int] = []
    while (remaining := len(close) + spare - len(said)) > 0 and not hold.is_over:
        hold.prepare(remaining)
        if not hold.forced:
            mask = hold.matcher.compute_bitmask()
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
        hold = hold_of(constraint)
        wish = VIEW.tokenizer.greedy_tokenize('{"note":"') + VIEW.tokenizer.greedy_tokenize("Q") * size
        wish += VIEW.tokenizer.greedy_tokenize('",') + opened
        said: list[int] = []
        while (remaining := 110 - len(said)) > 0 and not hold.is_over:
            hold.prepare(remaining)
            wanted = wish[0] if wish else -1
            if hold.matcher.validate_tokens([wanted] if wanted >= 0 else []) != 1:
                close = find_close(hold.matcher, VIEW)
                wanted = close[0] if close else VIEW.eos_token_ids[0]
            taken = [] if hold.forced else [hold.take(wanted, remaining)]
            for token_id in taken + hold.forced:
                said.append(token_id)
                wish = wish[1:] if wish and token_id == wish[0] else []
            hold.spend(len(hold.forced))
        text = VIEW.tokenizer.decode_str(said)
        assert hold.is_match, (size, text)
        fates.add('"detail"' in text)
    assert fates == {True, False}


# ── what is known without looking ──


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_no_text_needs_more_to_be_closed_than_its_schema_says(name: str) -> None:
    """Random walks through the mask, most of them in what the schema describes."""
    bound = bound_of(SCHEMAS[name], count)
    if bound is None:
        return
    rng = random.Random(name)
    for _ in range(6):
        matcher, grown = compile_matcher(schema(SCHEMAS[name]), VIEW), 0
        for _ in range(rng.randrange(3, 30)):
            if matcher.is_stopped():
                break
            close = find_close(matcher, VIEW)
            assert close is not None
            assert len(close) <= bound + grown
            mask = matcher.compute_bitmask()
            allowed = [i for i in range(VIEW.num_tokens) if mask[i >> 3] >> (i & 7) & 1]
            short = [i for i in allowed if len(VIEW.tokenizer.decode_bytes([i])) < 3]
            token_id = rng.choice(short or allowed)
            grown += growth(VIEW.tokenizer.decode_bytes([token_id]))
            assert matcher.consume_token(token_id)


@pytest.mark.parametrize(
    ("value", "is_known"),
    [
        (record(a=STRING, b={"type": ["integer", "null"]}), True),
        ({"type": "object", "properties": {"a": STRING}}, True),
        ({}, True),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": STRING}}, True),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}}}}, False),
        (record(a={"type": "string", "optional": True}), True),  # no keyword of JSON schemas
        (record(a={"type": "string", "nullable": True}), False),
        ({"$ref": "#"}, False),
        ({"$ref": "https://elsewhere"}, False),
        ({"type": "string", "pattern": "a{500}"}, False),
        ({"type": "string", "minLength": 10**9}, False),
        ({"type": "array", "items": {"type": "string", "minLength": 300}, "minItems": 300}, False),
        ({"allOf": [STRING]}, False),
        ({"anyOf": []}, False),
        ({"enum": [[1, 2]]}, False),
        (record(a=False), False),
        ({"type": "object", "required": "a"}, False),
    ],
)
def test_what_is_not_read_has_no_bound(value: dict[str, object], is_known: bool) -> None:
    assert (bound_of(value, count) is not None) == is_known


def test_parts_that_are_used_again_and_again_are_sized_once() -> None:
    levels: dict[str, object] = {
        f"l{n}": record(a={"$ref": f"#/$defs/l{n + 1}"}, b={"$ref": f"#/$defs/l{n + 1}"}) for n in range(40)
    }
    assert bound_of({"$ref": "#/$defs/l0", "$defs": levels | {"l40": STRING}}, count) is None  # 2 ** 40 keys


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_a_hold_takes_what_its_mask_allows_and_refuses_all_else(name: str) -> None:
    hold, rng = hold_of(schema(SCHEMAS[name])), random.Random(name)
    for _ in range(8):
        hold.prepare(200)
        hold.spend(len(hold.forced))
        if hold.is_over:
            break
        mask = hold.matcher.compute_bitmask()
        allowed = {i for i in range(VIEW.num_tokens) if mask[i >> 3] >> (i & 7) & 1}
        if hold.is_open:
            assert not hold.matcher.compute_ff_tokens()
            for token_id in [*VIEW.eos_token_ids, *rng.sample(range(VIEW.num_tokens), 40)]:
                if token_id not in allowed:
                    assert hold.take(token_id, 200) == REFUSED
                    assert hold.matcher.compute_bitmask() == mask
        said = rng.choice(sorted(allowed))
        assert hold.take(said, 200) == said
        if said in VIEW.eos_token_ids:
            break


PLAIN = [token_id for token_id, is_plain in enumerate(VIEW.plain) if is_plain]
WITH_FREE_STRINGS = [name for name, value in SCHEMAS.items() if has_free_strings_only(value)]


@pytest.mark.parametrize("name", WITH_FREE_STRINGS)
def test_tokens_taken_within_a_free_string_are_those_that_the_matcher_would_take(name: str) -> None:
    """The same tokens are offered to a hold that asks the matcher about each."""
    constraint, rng, num_untold = schema(SCHEMAS[name]), random.Random(name), 0
    matcher = compile_matcher(constraint, VIEW)
    quick, asking = (Closing(constraint, matcher, VIEW) for _ in range(2))
    asking.probe = []
    for _ in range(3):
        hold, twin = Hold(matcher.deep_copy(), quick, VIEW), Hold(matcher.deep_copy(), asking, VIEW)
        for remaining in range(4_000, 3_920, -1):
            for each in (hold, twin):
                each.prepare(remaining)
                each.spend(len(each.forced))
            if hold.is_over:
                break
            token_id = rng.choice(PLAIN)
            if rng.random() < 0.6:
                mask = twin.matcher.compute_bitmask()
                token_id = rng.choice([each for each in range(4096) if mask[each >> 3] >> (each & 7) & 1])
            assert hold.take(token_id, remaining) == twin.take(token_id, remaining)
            num_untold += hold.num_untold > 0
            assert not (hold.is_open and twin.matcher.compute_ff_tokens())
            if hold.num_untold:
                assert find_close(twin.matcher, VIEW, is_in_string=True) == find_close(twin.matcher, VIEW)
            assert (hold.forced, hold.is_over, hold.is_failed) == (twin.forced, twin.is_over, False)
        assert hold.is_match == twin.is_match
    assert num_untold or name not in ("a flat record", "a record in a record", "an optional key")


def test_a_string_goes_on_to_the_last_token_and_is_ended_without_a_draw() -> None:
    hold = hold_of(schema(record(a=STRING)))
    said, letter = VIEW.tokenizer.tokenize_str('{"a":"'), VIEW.tokenizer.tokenize_str("Q")
    for limit in (20, 40):
        hold, draws, remaining = hold_of(schema(record(a=STRING))), [*said, *letter * limit], limit
        while remaining and not hold.is_over:
            hold.prepare(remaining)
            if hold.forced:
                del draws[: draws[:1] == hold.forced[:1]]
                hold.spend(1)
            else:
                assert hold.take(draws[0], remaining) == draws.pop(0)
            remaining -= 1
        assert (hold.is_match, remaining) == (True, 0)
        assert hold.is_over


def test_with_room_for_one_token_any_choice_may_still_be_drawn() -> None:
    for choice in ("yes", "no", "maybe"):
        hold = hold_of(Constraint("choice", '["yes", "no", "maybe"]'))
        token_ids = VIEW.tokenizer.tokenize_str(choice)
        for number, token_id in enumerate(token_ids):
            hold.prepare(len(token_ids) - number)
            if hold.forced:
                assert hold.forced[0] == token_id
                hold.spend(1)
            else:
                assert hold.take(token_id, len(token_ids) - number) == token_id
        assert hold.is_match


@pytest.mark.parametrize(
    ("constraint", "is_known"),
    [
        (schema(record(a=STRING)), True),
        (schema({"type": "array"}), True),
        (Constraint("json_object"), True),
        (schema(INTEGER), False),  # 1 may become 12
        (schema({"type": ["object", "integer"]}), False),
        (schema({}), False),
        (Constraint("regex", "a+"), False),
    ],
)
def test_what_ends_itself_is_known_by_its_last_byte(constraint: Constraint, is_known: bool) -> None:
    assert ends_itself(constraint) is is_known


@pytest.mark.parametrize("seed", range(8))
def test_a_long_string_leaves_room_for_what_must_follow_it(seed: int) -> None:
    """The schema has no bound, its shortest text is a number, and its objects take forty tokens to close."""
    constraint = schema({"required": ["foo\nbar", 'foo"bar', "foo\\bar", "foo\rbar", "foo\tbar", "foo\fbar"]})
    matcher, rng = compile_matcher(constraint, VIEW), random.Random(seed)
    hold = Hold(matcher.deep_copy(), Closing(constraint, matcher, VIEW), VIEW)
    begin = VIEW.tokenizer.tokenize_str('{"')
    remaining = 160
    while remaining and not hold.is_over:
        hold.prepare(remaining)
        if hold.forced:
            hold.spend(1)
        elif hold.take(begin.pop(0) if begin else rng.choice(PLAIN), remaining) == REFUSED:
            mask = hold.matcher.compute_bitmask()
            allowed = [each for each in range(4096) if mask[each >> 3] >> (each & 7) & 1]
            assert hold.take(rng.choice(allowed), remaining) != REFUSED
        remaining -= 1
    assert hold.is_match


@pytest.mark.parametrize(
    ("value", "is_known"),
    [
        (record(a=STRING), True),
        (record(pattern=STRING, format=INTEGER), True),
        (record(a={"enum": ["q0 ", "b"]}, b=STRING), True),  # by another probe
        (record(a={"enum": ["q0 ", "Zx1 ", "w7.Qj "]}), False),
        (record(a={"type": "string", "maxLength": 5}), False),
        ({"type": "array", "items": {"type": "string", "pattern": "[q0 ]*"}}, False),
        ({"type": "object", "patternProperties": {"^q": True}}, False),
        ({"$ref": "#/other/place", "other": {"place": {"type": "string", "format": "uuid"}}}, False),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "string", "format": "uuid"}}}, False),
    ],
)
def test_free_strings_are_known_by_what_no_other_text_spells(value: dict[str, object], is_known: bool) -> None:
    constraint = schema(value)
    probe = probe_of(constraint)
    assert bool(probe) is is_known
    assert probe[:-1] not in constraint.text or not probe
