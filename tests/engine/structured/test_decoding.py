"""Constrained generation with the built-in model: outputs match, in any batch, and other sequences are unaffected."""

from __future__ import annotations

import json
import re

import jsonschema_rs
import llguidance
import numpy as np
import pytest

from engine.protocol.output_format import Constraint
from engine.runner import Runner
from engine.structured import compile as compile_module
from engine.structured import matchers
from engine.structured.constrained_rows import ConstrainedRows
from tests.engine.structured.schemas import INTEGER, SCHEMAS, STRING, record
from tests.engine.structured.spark_engine import Completion, SparkEngine

PERSON = record(name=STRING, age=INTEGER)
PROMPT = "Tell me about a person in Paris."


@pytest.fixture(scope="module")
def runner() -> Runner:
    return SparkEngine().runner


@pytest.fixture
def spark(runner: Runner) -> SparkEngine:
    return SparkEngine(runner)


def schema(value: object) -> Constraint:
    return Constraint("json_schema", json.dumps(value))


def is_valid(completion: Completion, value: object) -> bool:
    return jsonschema_rs.is_valid(value, json.loads(completion.text))  # type: ignore[arg-type]


# ── outputs match ──


@pytest.mark.parametrize("temperature", [0.0, 1.0, 2.0])
def test_output_matches_every_schema_at_every_temperature_in_one_batch(spark: SparkEngine, temperature: float) -> None:
    submitted = {
        name: spark.submit(PROMPT, schema(value), temperature=temperature, max_tokens=250, seed=11)
        for name, value in SCHEMAS.items()
    }
    spark.run()
    num_complete = 0
    for name, sequence_id in submitted.items():
        completion = spark.completions[sequence_id]
        if completion.finish == "unclosed":  # at high temperatures a string may last up to the limit
            continue
        num_complete += 1
        assert completion.finish in ("stop", "length"), (name, completion)
        assert is_valid(completion, SCHEMAS[name]), (name, completion.text)
    assert num_complete >= 0.7 * len(SCHEMAS)


def test_keys_are_in_schema_order_and_nothing_follows_the_value(spark: SparkEngine) -> None:
    completion = spark.complete(
        PROMPT, schema(record(zebra=INTEGER, apple=INTEGER, mango=INTEGER)), temperature=0.0, max_tokens=120
    )
    assert list(json.loads(completion.text)) == ["zebra", "apple", "mango"]
    assert (completion.finish, completion.text[0], completion.text[-1]) == ("stop", "{", "}")


@pytest.mark.parametrize("temperature", [0.0, 2.0])
def test_json_object_contains_only_finite_numbers(spark: SparkEngine, temperature: float) -> None:
    for seed in range(5):
        spark.submit(PROMPT, Constraint("json_object"), temperature=temperature, max_tokens=200, seed=seed)
    spark.run()
    finished = [each for each in spark.completions.values() if each.finish == "stop"]
    assert finished
    for completion in finished:
        value = json.loads(completion.text, parse_float=float)
        assert isinstance(value, dict)
        assert "Infinity" not in json.dumps(value)


def test_choice_output_is_one_of_the_choices(spark: SparkEngine) -> None:
    choices = ["yes", "no", "may be\n", 'a "quoted" one', "日本"]
    constraint = Constraint("choice", json.dumps(choices))
    texts = {spark.complete(PROMPT, constraint, temperature=2.0, seed=seed).text for seed in range(12)}
    assert texts <= set(choices)
    assert len(texts) > 1


@pytest.mark.parametrize(
    "pattern", [r"\d{3}-\d{4}", r"^(Monday|Friday)$", r"[a-z]{5,9}( [a-z]+){2}\.", r"(?i:PARIS) in \$[0-9]{2}\$"]
)
def test_regex_matches_the_whole_output(spark: SparkEngine, pattern: str) -> None:
    for temperature in (0.0, 1.5):
        completion = spark.complete(
            PROMPT, Constraint("regex", pattern), temperature=temperature, max_tokens=40, seed=3
        )
        assert re.fullmatch(pattern, completion.text), completion.text
        assert completion.finish == "stop"


def test_endless_regex_ends_with_an_end_token_or_at_the_limit(spark: SparkEngine) -> None:
    completion = spark.complete(PROMPT, Constraint("regex", "[a-z ]+"), max_tokens=6, temperature=1.0, seed=1)
    assert re.fullmatch("[a-z ]+", completion.text)
    assert completion.finish in ("stop", "length")
    assert spark.complete(PROMPT, Constraint("regex", "(ab){9,}"), max_tokens=40).text.startswith("ab" * 9)


def test_grammar_writes_control_tokens_only_where_it_names_them(spark: SparkEngine) -> None:
    call = json.dumps(record(name={"const": "weather"}, arguments=record(city=STRING)))
    constraint = Constraint("grammar", f"start: <tool_call> %json {call} </tool_call>")
    opening, closing = (spark.tokenizer.control_id(text) for text in ("<tool_call>", "</tool_call>"))
    for temperature in (0.0, 1.0):
        completion = spark.complete(PROMPT, constraint, temperature=temperature, max_tokens=200, seed=5)
        assert (completion.token_ids[0], completion.token_ids[-1], completion.finish) == (opening, closing, "stop")
        assert not {opening, closing} & set(completion.token_ids[1:-1])
        assert json.loads(completion.text[len("<tool_call>") : -len("</tool_call>")])["name"] == "weather"


def test_penalties_filters_and_ignore_eos_apply_within_the_constraint(spark: SparkEngine) -> None:
    settings = {"repetition_penalty": 2.0, "presence_penalty": 2.0, "frequency_penalty": 2.0, "top_k": 3}
    completion = spark.complete(PROMPT, schema(PERSON), temperature=2.0, top_p=0.5, seed=2, ignore_eos=True, **settings)
    assert is_valid(completion, PERSON)
    assert completion.finish == "stop"


def test_log_probabilities_are_those_of_the_unconstrained_model(spark: SparkEngine) -> None:
    sequence_id = spark.submit(PROMPT, schema(PERSON), temperature=0.0, logprobs=1)
    while not spark.completions[sequence_id].token_ids:
        report = spark.step()
    assert spark.tokenizer.decode(spark.completions[sequence_id].token_ids)[0] == "{"
    assert report.top_ids is not None
    assert report.top_ids[0, 0] != report.token_ids[0]  # the unconstrained model's likeliest token is another
    assert report.logprobs[0] < report.top_logprobs[0, 0] < 0  # type: ignore[index]


# ── the token limit ──


@pytest.mark.parametrize("temperature", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("max_tokens", [24, 64])
def test_value_without_missing_properties_is_closed_before_the_limit(
    spark: SparkEngine, max_tokens: int, temperature: float
) -> None:
    values = [
        {"type": "string"},
        {"type": "array", "items": STRING},
        {"type": "array", "items": {"type": "array", "items": STRING}},
    ]
    submitted = [
        (value, spark.submit(PROMPT, schema(value), temperature=temperature, max_tokens=max_tokens, seed=seed))
        for value in values
        for seed in range(3)
    ]
    spark.run()
    num_closed = 0
    for value, sequence_id in submitted:
        completion = spark.completions[sequence_id]
        assert len(completion.token_ids) <= max_tokens
        if completion.finish == "stop":
            num_closed += 1
            assert is_valid(completion, value)
    assert num_closed >= len(submitted) - 1  # the limit may be within an escape


def test_value_that_cannot_be_closed_ends_as_unclosed(spark: SparkEngine) -> None:
    completion = spark.complete(PROMPT, schema(record(id={"type": "string", "format": "uuid"})), max_tokens=9)
    assert (completion.finish, len(completion.token_ids)) == ("unclosed", 9)
    assert completion.text.startswith('{"id":')


def test_completing_with_the_last_token_counts_as_stop(spark: SparkEngine) -> None:
    whole = spark.complete(PROMPT, Constraint("choice", '["abc def ghi"]'))
    again = spark.complete(PROMPT, Constraint("choice", '["abc def ghi"]'), max_tokens=len(whole.token_ids))
    assert (again.finish, again.text) == ("stop", "abc def ghi")


# ── jump-forward decoding ──


def run_with_fixed_parts(
    runner: Runner, *, has_cheap_multi_token_rows: bool, temperature: float
) -> tuple[int, list[Completion], list[tuple[str, ...]]]:
    """Run schemas with fixed parts beside an unconstrained sequence. Returns the number of steps, the completions, and
    the log-probabilities of the sequence that requested them."""
    runner.has_cheap_multi_token_rows = has_cheap_multi_token_rows
    spark = SparkEngine(runner)
    values = [PERSON, SCHEMAS["a flat record"], record(constant={"const": "one and the same " * 4}), SCHEMAS["a tree"]]
    sampling = {"temperature": temperature, "max_tokens": 300}
    submitted = [spark.submit(PROMPT, schema(value), seed=seed, **sampling) for seed, value in enumerate(values)]
    spark.submit("Say something.", max_tokens=10, ignore_eos=True, temperature=1.0, seed=5)
    short = record(constant={"const": "one and the same"})
    scored = spark.submit(PROMPT, schema(short), seed=9, logprobs=2, **sampling)
    logprobs = []
    while spark.engine.has_work:
        report = spark.step()
        for row in np.flatnonzero((report.sequence_ids == scored) & (report.token_ids >= 0)):
            assert report.logprobs is not None
            assert report.top_logprobs is not None
            logprobs.append(tuple(f"{value:.1f}" for value in (report.logprobs[row], *report.top_logprobs[row])))
    spark.run()
    assert all(is_valid(spark.completions[each], value) for each, value in zip(submitted, values, strict=True))
    assert len(logprobs) == len(spark.completions[scored].token_ids)
    assert "nan" not in str(logprobs)
    completions = [each for _, each in sorted(spark.completions.items(), key=lambda pair: pair[0])]
    return spark.engine.scheduler.num_steps, completions, logprobs


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_jump_forward_saves_steps_and_changes_no_output(
    runner: Runner, monkeypatch: pytest.MonkeyPatch, temperature: float
) -> None:
    monkeypatch.setattr(runner, "has_cheap_multi_token_rows", True)
    few, *with_jumps = run_with_fixed_parts(runner, has_cheap_multi_token_rows=True, temperature=temperature)
    many, *without_jumps = run_with_fixed_parts(runner, has_cheap_multi_token_rows=False, temperature=temperature)
    assert with_jumps == without_jumps
    assert few < many


def test_constant_takes_few_steps(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "has_cheap_multi_token_rows", True)
    spark = SparkEngine(runner)
    completion = spark.complete(PROMPT, schema(record(constant={"const": "one and the same " * 4})), temperature=0.0)
    assert spark.engine.scheduler.num_steps < len(completion.token_ids) / 2
    assert spark.engine.blocks.num_in_use == 0


@pytest.mark.parametrize("max_tokens", range(3, 24, 2))
def test_token_limit_cuts_jump_forward_tokens(runner: Runner, monkeypatch: pytest.MonkeyPatch, max_tokens: int) -> None:
    monkeypatch.setattr(runner, "has_cheap_multi_token_rows", True)
    value = record(constant={"const": "one and the same one and the same"}, more=INTEGER)
    completions = []
    for has_cheap_multi_token_rows in (True, False):
        runner.has_cheap_multi_token_rows = has_cheap_multi_token_rows
        completions.append(SparkEngine(runner).complete(PROMPT, schema(value), temperature=0.0, max_tokens=max_tokens))
    assert completions[0] == completions[1]
    assert len(completions[0].token_ids) <= max_tokens
    assert (completions[0].finish == "unclosed") == (not completions[0].text.endswith("}"))


def test_stop_token_within_jump_forward_tokens_ends_the_sequence(spark: SparkEngine) -> None:
    value = schema(record(constant={"const": "one and the same"}))
    whole = spark.complete(PROMPT, value, temperature=0.0).token_ids
    cut = spark.complete(PROMPT, value, temperature=0.0, stop_token_ids=(whole[-4],))
    assert (cut.token_ids, cut.finish) == (whole[: whole.index(whole[-4])], "stop")


# ── other sequences in the batch ──


def unconstrained_outputs(spark: SparkEngine, neighbors: list[Constraint]) -> list[list[int]]:
    """Return the outputs of three unconstrained sequences that run beside `neighbors`."""
    settings: list[dict[str, object]] = [
        {"temperature": 0.0},
        {"temperature": 1.2, "top_p": 0.9},
        {"temperature": 0.8, "repetition_penalty": 1.3},
    ]
    ids = []
    for index, sampling in enumerate(settings):
        ids.append(spark.submit(f"Say {index} things.", max_tokens=40, ignore_eos=True, seed=index, **sampling))
        for constraint in neighbors:
            spark.submit(PROMPT, constraint, max_tokens=30, temperature=1.0, seed=index)
    spark.run()
    return [spark.completions[sequence_id].token_ids for sequence_id in ids]


def test_constrained_neighbors_do_not_change_other_outputs(runner: Runner) -> None:
    neighbors = [
        schema(SCHEMAS["a tree"]),
        Constraint("regex", "(.*a){30}"),
        Constraint("regex", "("),  # does not compile
        Constraint("json_schema", '{"$ref": "#"}'),
        Constraint("grammar", "start: <no_such_token>"),
    ]
    assert unconstrained_outputs(SparkEngine(runner), []) == unconstrained_outputs(SparkEngine(runner), neighbors)


def test_constraint_that_does_not_compile_fails_its_own_sequence(spark: SparkEngine) -> None:
    bad = spark.submit(PROMPT, Constraint("regex", "("))
    good = spark.submit(PROMPT, schema(PERSON))
    spark.run()
    assert spark.completions[bad].finish == "error"
    assert is_valid(spark.completions[good], PERSON)


def test_matcher_at_its_limits_fails_its_own_sequence(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of lexer states is low enough that the pattern compiles and fails while it is matched."""
    alone = unconstrained_outputs(SparkEngine(runner), [])
    limits = llguidance.LLParserLimits(max_lexer_states=100, verbose_errors=False)
    monkeypatch.setattr(compile_module, "limits", lambda: limits)
    spark = SparkEngine(runner)
    assert unconstrained_outputs(spark, [Constraint("regex", "([ab]*a[ab]{9}|c)+d[ab ]{5}")]) == alone
    finishes = [completion.finish for completion in spark.completions.values()]
    assert finishes.count("too_complex") == 3, finishes
    assert spark.engine.matchers.num_matchers == 0
    spark.engine.blocks.check_integrity([])


def test_prefetched_masks_give_the_same_output(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    def texts() -> list[str]:
        spark = SparkEngine(runner)
        for seed in range(4):
            spark.submit(PROMPT, schema(SCHEMAS["a flat record"]), temperature=1.0, seed=seed, max_tokens=60, top_k=9)
        spark.run()
        return [completion.text for completion in spark.completions.values()]

    prefetches: list[ConstrainedRows] = []
    prefetch = ConstrainedRows.prefetch_masks
    monkeypatch.setattr(
        ConstrainedRows, "prefetch_masks", lambda rows, executor: prefetches.append(rows) or prefetch(rows, executor)
    )
    monkeypatch.setattr(matchers, "_PREFETCH_BITS", 1 << 62)
    inline = texts()
    assert not prefetches
    monkeypatch.setattr(matchers, "_PREFETCH_BITS", 0)
    assert texts() == inline
    assert prefetches


# ── a sequence's life ──


def test_preempted_sequence_continues_with_the_same_output(runner: Runner) -> None:
    """With a pool too small for all sequences, some lose their KV cache and recompute it."""

    def texts(num_blocks: int) -> tuple[list[str], int]:
        spark = SparkEngine(num_blocks=num_blocks, max_sequences=6)
        for seed in range(6):
            spark.submit(PROMPT, schema(SCHEMAS["a list of strings"]), temperature=1.0, seed=seed, max_tokens=50)
        spark.run()
        return [completion.text for completion in spark.completions.values()], spark.engine.scheduler.num_preemptions

    roomy, none = texts(256)
    tight, many = texts(8)
    assert (none, many > 0) == (0, True)
    assert tight == roomy


def test_cached_prefix_does_not_change_the_output(spark: SparkEngine) -> None:
    long = "Tell me about a person in Paris. " * 8
    first, second = (spark.complete(long, schema(PERSON), temperature=1.0, seed=4) for _ in range(2))
    assert first.text == second.text


def test_abort_releases_the_matcher_of_running_and_compiling_sequences(spark: SparkEngine) -> None:
    running = spark.submit(PROMPT, schema(SCHEMAS["a list of strings"]), ignore_eos=True)
    while not spark.completions[running].token_ids:
        spark.step()
    compiling = spark.submit(PROMPT, schema(PERSON))
    spark.engine.abort(compiling)
    spark.engine.abort(running)
    spark.run()
    assert {spark.completions[running].finish, spark.completions[compiling].finish} == {"aborted"}
    assert (spark.engine.matchers.num_matchers, spark.engine.matchers.is_compiling) == (0, False)


def test_compiled_grammars_are_cached_per_namespace(spark: SparkEngine) -> None:
    for namespace in (b"a" * 32, b"a" * 32, b"b" * 32):
        spark.submit(PROMPT, schema(PERSON), namespace=namespace)
    spark.run()
    assert spark.engine.matchers.num_compiled == 2


def test_batch_without_constraints_does_not_read_the_vocabulary(spark: SparkEngine) -> None:
    spark.complete(PROMPT, max_tokens=5)
    assert not spark.engine.matchers.is_warm
    assert spark.engine.matchers.begin(np.array([1]), np.array([5], np.int32)) is None
