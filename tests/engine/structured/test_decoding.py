"""What the built-in model says under a constraint: always a match, in any batch, and nobody else's business."""

from __future__ import annotations

import json
import re
import threading

import jsonschema_rs
import llguidance
import numpy as np
import pytest

from engine.protocol.tasks import Constraint
from engine.runner import Runner
from engine.structured import compile as compile_module
from engine.structured import matchers
from tests.engine.structured.schemas import INTEGER, SCHEMAS, STRING, record
from tests.engine.structured.speaker import Said, Speaker

PERSON = record(name=STRING, age=INTEGER)
PROMPT = "Tell me about a person in Paris."


@pytest.fixture(scope="module")
def runner() -> Runner:
    return Speaker().runner


@pytest.fixture
def speaker(runner: Runner) -> Speaker:
    return Speaker(runner)


def schema(value: object) -> Constraint:
    return Constraint("json_schema", json.dumps(value))


def is_valid(said: Said, value: object) -> bool:
    return jsonschema_rs.is_valid(value, json.loads(said.text))  # type: ignore[arg-type]


# ── texts that match ──


@pytest.mark.parametrize("temperature", [0.0, 1.0, 2.0])
def test_every_schema_is_met_at_every_temperature_in_one_batch(speaker: Speaker, temperature: float) -> None:
    asked = {
        name: speaker.ask(PROMPT, schema(value), temperature=temperature, max_tokens=110, seed=11)
        for name, value in SCHEMAS.items()
    }
    speaker.run()
    for name, sequence_id in asked.items():
        said = speaker.said[sequence_id]
        assert said.finish in ("stop", "length"), (name, said)
        assert is_valid(said, SCHEMAS[name]), (name, said.text)


def test_keys_come_in_the_schema_s_order_and_nothing_follows_the_value(speaker: Speaker) -> None:
    said = speaker.answer(PROMPT, schema(record(zebra=INTEGER, apple=INTEGER, mango=INTEGER)), max_tokens=40)
    assert list(json.loads(said.text)) == ["zebra", "apple", "mango"]
    assert (said.finish, said.text[0], said.text[-1]) == ("stop", "{", "}")


@pytest.mark.parametrize("temperature", [0.0, 2.0])
def test_a_json_object_is_any_object_with_numbers_that_programs_can_hold(speaker: Speaker, temperature: float) -> None:
    for seed in range(5):
        speaker.ask(PROMPT, Constraint("json_object"), temperature=temperature, max_tokens=40, seed=seed)
    speaker.run()
    for said in speaker.said.values():
        value = json.loads(said.text, parse_float=float)
        assert isinstance(value, dict)
        assert "Infinity" not in json.dumps(value)


def test_a_choice_is_one_of_the_choices(speaker: Speaker) -> None:
    choices = ["yes", "no", "may be\n", 'a "quoted" one', "日本"]
    constraint = Constraint("choice", json.dumps(choices))
    said = {speaker.answer(PROMPT, constraint, temperature=2.0, seed=seed).text for seed in range(12)}
    assert said <= set(choices)
    assert len(said) > 1


@pytest.mark.parametrize(
    "pattern", [r"\d{3}-\d{4}", r"^(Monday|Friday)$", r"[a-z]{5,9}( [a-z]+){2}\.", r"(?i:PARIS) in \$[0-9]+\$"]
)
def test_a_regular_expression_matches_from_end_to_end(speaker: Speaker, pattern: str) -> None:
    for temperature in (0.0, 1.5):
        said = speaker.answer(PROMPT, Constraint("regex", pattern), temperature=temperature, max_tokens=40, seed=3)
        assert re.fullmatch(pattern, said.text), said.text
        assert said.finish == "stop"


def test_a_pattern_that_may_go_on_for_ever_ends_with_an_end_token_or_at_the_limit(speaker: Speaker) -> None:
    said = speaker.answer(PROMPT, Constraint("regex", "[a-z ]+"), max_tokens=6, temperature=1.0, seed=1)
    assert re.fullmatch("[a-z ]+", said.text)
    assert said.finish in ("stop", "length")
    repeated = speaker.answer(PROMPT, Constraint("regex", "(ab)+"), max_tokens=6)
    assert re.fullmatch("(ab)+", repeated.text)
    assert repeated.finish in ("stop", "length")
    assert speaker.answer(PROMPT, Constraint("regex", "(ab){9,}"), max_tokens=40).text.startswith("ab" * 9)


def test_a_grammar_has_control_tokens_where_it_says_and_only_there(speaker: Speaker) -> None:
    call = json.dumps(record(name={"const": "weather"}, arguments=record(city=STRING)))
    constraint = Constraint("grammar", f"start: <tool_call> %json {call} </tool_call>")
    opening, closing = (speaker.tokenizer.control_id(text) for text in ("<tool_call>", "</tool_call>"))
    for temperature in (0.0, 2.0):
        said = speaker.answer(PROMPT, constraint, temperature=temperature, max_tokens=50, seed=5)
        assert (said.token_ids[0], said.token_ids[-1], said.finish) == (opening, closing, "stop")
        assert not {opening, closing} & set(said.token_ids[1:-1])
        assert json.loads(said.text[len("<tool_call>") : -len("</tool_call>")])["name"] == "weather"


def test_free_text_may_pass_into_a_call_but_never_into_half_of_one(speaker: Speaker) -> None:
    constraint = Constraint("grammar", 'start: TEXT | TEXT <tool_call> "{}" </tool_call>\nTEXT: /(.|\\n)*/')
    said = [speaker.answer(PROMPT, constraint, temperature=1.5, max_tokens=12, seed=seed) for seed in range(6)]
    assert all(one.finish in ("stop", "length") for one in said)
    assert all(one.text.count("<tool_call>") == one.text.count("</tool_call>") for one in said)


def test_a_call_for_which_there_is_no_room_ends_at_the_limit_and_not_of_itself(speaker: Speaker) -> None:
    opening = speaker.tokenizer.control_id("<tool_call>")
    constraint = Constraint("grammar", f'start: TEXT | <[{opening}]> "{"ab" * 40}"\nTEXT: /[a-z ]*/')
    asked = {"temperature": 0.0, "logit_bias": ((opening, 50.0),)}
    assert speaker.answer(PROMPT, constraint, max_tokens=100, **asked).token_ids[0] == opening
    told = speaker.answer(PROMPT, constraint, max_tokens=9, **asked)
    assert (told.text, told.token_ids, told.finish) == ("", [], "length")


def test_penalties_filters_and_end_tokens_see_what_the_constraint_leaves(speaker: Speaker) -> None:
    settings = {"repetition_penalty": 2.0, "presence_penalty": 2.0, "frequency_penalty": 2.0, "top_k": 3}
    said = speaker.answer(PROMPT, schema(PERSON), temperature=2.0, top_p=0.5, seed=2, ignore_eos=True, **settings)
    assert is_valid(said, PERSON)
    assert said.finish == "stop"


def test_log_probabilities_are_the_model_s_own(speaker: Speaker) -> None:
    sequence_id = speaker.ask(PROMPT, schema(PERSON), temperature=0.0, logprobs=1)
    while not speaker.said[sequence_id].token_ids:
        report = speaker.engine.step()
        speaker.said[sequence_id].token_ids += report.token_ids.tolist()
    assert speaker.tokenizer.decode(speaker.said[sequence_id].token_ids)[0] == "{"
    assert report.top_ids is not None
    assert report.top_ids[0, 0] != report.token_ids[0]  # without the constraint it would have said something else
    assert report.logprobs[0] < report.top_logprobs[0, 0] < 0  # type: ignore[index]


# ── the token limit ──


@pytest.mark.parametrize("temperature", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("max_tokens", [17, 24, 64])
def test_a_value_is_closed_before_the_limit_wherever_its_shortest_form_fits(
    speaker: Speaker, max_tokens: int, temperature: float
) -> None:
    values = [
        record(text=STRING, words={"type": "array", "items": STRING}),
        {"type": "array", "items": record(a=INTEGER, b=STRING)},
        {"type": "string"},
        {"type": "array", "items": {"type": "array", "items": STRING}},
        SCHEMAS["a tree"],
    ]
    asked = [
        (value, speaker.ask(PROMPT, schema(value), temperature=temperature, max_tokens=max_tokens, seed=seed))
        for value in values
        for seed in range(3)
    ]
    speaker.run()
    for value, sequence_id in asked:
        said = speaker.said[sequence_id]
        assert said.finish == "stop", said
        assert len(said.token_ids) <= max_tokens
        assert is_valid(said, value)


def test_a_value_that_cannot_be_closed_in_time_is_unclosed(speaker: Speaker) -> None:
    said = speaker.answer(PROMPT, schema(record(id={"type": "string", "format": "uuid"})), max_tokens=9)
    assert (said.finish, len(said.token_ids)) == ("unclosed", 9)
    assert said.text.startswith('{"id":')


def test_the_limit_on_the_very_last_token_is_no_failure(speaker: Speaker) -> None:
    whole = speaker.answer(PROMPT, Constraint("choice", '["abc def ghi"]'))
    again = speaker.answer(PROMPT, Constraint("choice", '["abc def ghi"]'), max_tokens=len(whole.token_ids))
    assert (again.finish, again.text) == ("stop", "abc def ghi")


# ── what is forced ──


def steps_and_answers(
    runner: Runner, *, has_cheap_multi_token_rows: bool, temperature: float
) -> tuple[int, list[Said], list[tuple[str, ...]]]:
    """Of schemas with fixed parts, beside a free sequence: how many steps it took, what each said, and the
    log-probabilities of the one that asked for them."""
    runner.has_cheap_multi_token_rows = has_cheap_multi_token_rows
    speaker = Speaker(runner)
    wanted = [PERSON, SCHEMAS["a flat record"], record(constant={"const": "one and the same " * 4}), SCHEMAS["a tree"]]
    sampling = {"temperature": temperature, "max_tokens": 150}
    asked = [speaker.ask(PROMPT, schema(value), seed=seed, **sampling) for seed, value in enumerate(wanted)]
    speaker.ask("Say something.", max_tokens=10, ignore_eos=True, temperature=1.0, seed=5)
    short = record(constant={"const": "one and the same"})  # its tokens are computed one by one, for their scores
    curious = speaker.ask(PROMPT, schema(short), seed=9, logprobs=2, **sampling)
    logprobs = []
    while speaker.engine.has_work:
        report = speaker.step()
        for row in np.flatnonzero((report.sequence_ids == curious) & (report.token_ids >= 0)):
            assert report.logprobs is not None
            assert report.top_logprobs is not None
            logprobs.append(tuple(f"{value:.1f}" for value in (report.logprobs[row], *report.top_logprobs[row])))
    speaker.run()
    assert all(is_valid(speaker.said[each], value) for each, value in zip(asked, wanted, strict=True))
    assert len(logprobs) == len(speaker.said[curious].token_ids)
    assert "nan" not in str(logprobs)
    return (
        speaker.engine.scheduler.num_steps,
        [said for _, said in sorted(speaker.said.items(), key=lambda pair: pair[0])],
        logprobs,
    )


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_is_forced_is_computed_together_and_is_the_same_one_by_one(
    runner: Runner, monkeypatch: pytest.MonkeyPatch, temperature: float
) -> None:
    monkeypatch.setattr(runner, "has_cheap_multi_token_rows", True)
    few, *ahead = steps_and_answers(runner, has_cheap_multi_token_rows=True, temperature=temperature)
    many, *one_by_one = steps_and_answers(runner, has_cheap_multi_token_rows=False, temperature=temperature)
    assert ahead == one_by_one
    assert few < many


def test_a_constant_takes_a_few_steps(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "has_cheap_multi_token_rows", True)
    speaker = Speaker(runner)
    said = speaker.answer(PROMPT, schema(record(constant={"const": "one and the same " * 4})), temperature=0.0)
    assert speaker.engine.scheduler.num_steps < len(said.token_ids) / 2
    assert speaker.engine.blocks.num_in_use == 0


@pytest.mark.parametrize("max_tokens", range(3, 24))
def test_the_limit_is_the_limit_in_the_middle_of_what_is_forced(
    runner: Runner, monkeypatch: pytest.MonkeyPatch, max_tokens: int
) -> None:
    monkeypatch.setattr(runner, "has_cheap_multi_token_rows", True)
    value = record(constant={"const": "one and the same one and the same"}, more=INTEGER)
    said = []
    for has_cheap_multi_token_rows in (True, False):
        runner.has_cheap_multi_token_rows = has_cheap_multi_token_rows
        said.append(Speaker(runner).answer(PROMPT, schema(value), temperature=0.0, max_tokens=max_tokens))
    assert said[0] == said[1]
    assert len(said[0].token_ids) <= max_tokens
    assert (said[0].finish == "unclosed") == (not said[0].text.endswith("}"))


def test_a_stop_token_in_the_middle_of_what_is_forced_ends_the_sequence(speaker: Speaker) -> None:
    value = schema(record(constant={"const": "one and the same"}))
    whole = speaker.answer(PROMPT, value, temperature=0.0).token_ids
    cut = speaker.answer(PROMPT, value, temperature=0.0, stop_token_ids=(whole[-4],))
    assert (cut.token_ids, cut.finish) == (whole[: whole.index(whole[-4])], "stop")  # the speaker leaves out the end


# ── others in the batch ──


def free_answers(speaker: Speaker, neighbours: list[Constraint]) -> list[list[int]]:
    """What three unconstrained sequences say beside `neighbours`."""
    settings: list[dict[str, object]] = [
        {"temperature": 0.0},
        {"temperature": 1.2, "top_p": 0.9},
        {"temperature": 0.8, "repetition_penalty": 1.3},
    ]
    free = []
    for index, sampling in enumerate(settings):
        free.append(speaker.ask(f"Say {index} things.", max_tokens=40, ignore_eos=True, seed=index, **sampling))
        for constraint in neighbours:
            speaker.ask(PROMPT, constraint, max_tokens=30, temperature=1.0, seed=index)
    speaker.run()
    return [speaker.said[sequence_id].token_ids for sequence_id in free]


def test_neighbours_of_a_constrained_sequence_say_what_they_say_without_it(runner: Runner) -> None:
    neighbours = [
        schema(SCHEMAS["a tree"]),
        Constraint("regex", "(.*a){30}"),
        Constraint("regex", "("),  # what no checker would pass
        Constraint("json_schema", '{"$ref": "#"}'),
        Constraint("grammar", "start: <no_such_token>"),
    ]
    assert free_answers(Speaker(runner), []) == free_answers(Speaker(runner), neighbours)


def test_what_does_not_compile_ends_its_own_sequence_with_an_error(speaker: Speaker) -> None:
    bad = speaker.ask(PROMPT, Constraint("regex", "("))
    good = speaker.ask(PROMPT, schema(PERSON))
    speaker.run()
    assert speaker.said[bad].finish == "error"
    assert is_valid(speaker.said[good], PERSON)


def test_a_matcher_at_its_limit_ends_its_own_sequence(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lexer may make so few states that the pattern compiles and then cannot go on."""
    alone = free_answers(Speaker(runner), [])
    limits = llguidance.LLParserLimits(max_lexer_states=100, verbose_errors=False)
    monkeypatch.setattr(compile_module, "limits", lambda: limits)
    speaker = Speaker(runner)
    assert free_answers(speaker, [Constraint("regex", "([ab]*a[ab]{9}|c)+d[ab ]{5}")]) == alone
    ends = [said.finish for said in speaker.said.values()]
    assert ends.count("too_complex") == 3, ends
    assert speaker.engine.matchers.num_held == 0
    speaker.engine.blocks.check_integrity([])


def test_masks_filled_beside_the_forward_pass_are_the_same(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    def texts() -> list[str]:
        speaker = Speaker(runner)
        for seed in range(4):
            speaker.ask(PROMPT, schema(SCHEMAS["a flat record"]), temperature=1.0, seed=seed, max_tokens=25)
        speaker.run()
        return [said.text for said in speaker.said.values()]

    beside: list[bool] = []
    begin = matchers.ThreadPoolExecutor.submit
    monkeypatch.setattr(
        matchers.ThreadPoolExecutor,
        "submit",
        lambda pool, work, *values: beside.append(work.__name__ == "_fill") or begin(pool, work, *values),
    )
    monkeypatch.setattr(matchers, "_MANY_BITS", 1 << 62)
    inline = texts()
    assert not any(beside)
    monkeypatch.setattr(matchers, "_MANY_BITS", 0)
    monkeypatch.setattr(matchers, "_STEPS_INLINE", 2)
    assert texts() == inline
    assert any(beside)


def test_a_thread_that_is_late_is_done_without_for_a_while(speaker: Speaker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matchers, "_MANY_BITS", 0)
    speaker.ask(PROMPT, schema(PERSON))
    while not speaker.engine.matchers.num_held:
        speaker.step()
    may_go_on = threading.Event()
    speaker.engine.matchers._filler.submit(may_go_on.wait)  # what a busy core looks like
    speaker.run()
    assert speaker.engine.matchers._num_inline > 0
    may_go_on.set()
    assert all(is_valid(said, PERSON) for said in speaker.said.values())


# ── over a sequence's life ──


def test_a_preempted_sequence_goes_on_where_it_was(runner: Runner) -> None:
    """A pool too small for all: sequences lose their KV and compute it again, and say the same."""

    def texts(num_blocks: int) -> tuple[list[str], int]:
        speaker = Speaker(num_blocks=num_blocks, max_sequences=6)
        for seed in range(6):
            speaker.ask(PROMPT, schema(SCHEMAS["a list of strings"]), temperature=1.0, seed=seed, max_tokens=50)
        speaker.run()
        return [said.text for said in speaker.said.values()], speaker.engine.scheduler.num_preemptions

    roomy, none = texts(256)
    tight, many = texts(8)
    assert (none, many > 0) == (0, True)
    assert tight == roomy


def test_a_cached_prefix_changes_nothing(runner: Runner) -> None:
    speaker = Speaker(runner)
    long = "Tell me about a person in Paris. " * 8
    first, second = (speaker.answer(long, schema(PERSON), temperature=1.0, seed=4) for _ in range(2))
    assert first.text == second.text


def test_an_abort_frees_the_matcher_wherever_the_sequence_is(speaker: Speaker) -> None:
    running = speaker.ask(PROMPT, schema(SCHEMAS["a list of strings"]), ignore_eos=True)
    while not speaker.said[running].token_ids:
        speaker.step()
    compiling = speaker.ask(PROMPT, schema(PERSON))
    speaker.engine.abort(compiling)
    speaker.engine.abort(running)
    speaker.run()
    assert {speaker.said[running].finish, speaker.said[compiling].finish} == {"aborted"}
    assert (speaker.engine.matchers.num_held, speaker.engine.matchers.is_preparing) == (0, False)


def test_a_compiled_grammar_is_kept_per_namespace(speaker: Speaker) -> None:
    for namespace in (b"a" * 32, b"a" * 32, b"b" * 32):
        speaker.ask(PROMPT, schema(PERSON), namespace=namespace)
    speaker.run()
    assert len(speaker.engine.matchers._compiled) == 2


def test_a_batch_without_constraints_asks_nothing_of_the_matchers(speaker: Speaker) -> None:
    speaker.answer(PROMPT, max_tokens=5)
    assert not speaker.engine.matchers.is_warm
    assert speaker.engine.matchers.begin(np.array([1]), np.array([5], np.int32)) is None
