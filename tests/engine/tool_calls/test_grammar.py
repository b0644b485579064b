"""Tests of the grammars of calls, compiled by llguidance: calls match, and text that only resembles a call does not."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from engine.protocol.output_format import Constraint
from engine.protocol.tasks.text_generation import TextGeneration
from engine.protocol.tools import Tool
from engine.structured.compile import compile_matcher
from engine.structured.vocabulary import Vocabulary, read_vocabulary
from engine.text.tokenizer import Tokenizer
from engine.tool_calls.families import HERMES, LLAMA3_JSON, MISTRAL
from engine.tool_calls.family import Family
from engine.tool_calls.grammar import Controls, can_be_lazy, lazy_calls, required_calls
from engine.tool_calls.output_plan import ToolsRefused, make_output_plan
from engine.tool_calls.tool_format import ToolFormat
from tests.engine.tool_calls.bfcl import KINDS, tools_and_calls

SPARK = Path(__file__).parents[3] / "catalog/builtin/spark"
TOKENIZER = Tokenizer(SPARK)
WEATHER = Tool(
    name="get_weather",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
    },
)
NOW = Tool(name="now")
OSLO = '{"name": "get_weather", "arguments": {"city": "Oslo"}}'
NOON = '{"name": "now", "arguments": {}}'


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return read_vocabulary(SPARK, 4096, (0, 2))


@pytest.fixture(scope="module")
def controls() -> Controls:
    marks = {mark: token_id for mark in HERMES.marks if (token_id := TOKENIZER.control_id(mark)) is not None}
    assert len(marks) == 2
    return Controls(marks)


def accepts(vocabulary: Vocabulary, constraint: Constraint, text: str) -> bool:
    """Return True if the whole text matches, with its marks as control tokens."""
    return accepts_ids(vocabulary, constraint, TOKENIZER.encode(text, parse_special=True))


def accepts_ids(vocabulary: Vocabulary, constraint: Constraint, token_ids: list[int]) -> bool:
    matcher = compile_matcher(constraint, vocabulary)
    return matcher.try_consume_tokens(token_ids) == len(token_ids) and matcher.is_accepting()


def hermes(*calls: str) -> str:
    return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)


def required(
    vocabulary: Vocabulary, controls: Controls, text: str, tools: Sequence[Tool] = (WEATHER, NOW), **how: bool
) -> bool:
    options = {"is_parallel": True, "is_loose": False} | how
    return accepts(vocabulary, required_calls(HERMES, tools, controls, **options), text)


@pytest.mark.parametrize("text", [hermes(OSLO), hermes(NOON), hermes(OSLO, NOON, OSLO)])
def test_required_calls_match_the_grammar(vocabulary: Vocabulary, controls: Controls, text: str) -> None:
    assert required(vocabulary, controls, text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Hello.",
        "Hello. " + hermes(NOON),
        hermes(NOON) + " and more",
        OSLO,
        hermes('{"name": "other", "arguments": {}}'),
        hermes('{"name": "get_weather", "arguments": {}}'),
        hermes('{"name": "get_weather", "arguments": {"city": 5}}'),
        hermes('{"name": "get_weather", "arguments": {"city": "Oslo", "country": "Norway"}}'),
        hermes('{"name": "now", "arguments": {"x": 1}}'),
        hermes(NOON)[:-5],
    ],
)
def test_other_text_does_not_match_required_calls(vocabulary: Vocabulary, controls: Controls, text: str) -> None:
    assert not required(vocabulary, controls, text)


def test_one_call_without_parallel_calls(vocabulary: Vocabulary, controls: Controls) -> None:
    assert required(vocabulary, controls, hermes(OSLO), is_parallel=False)
    assert not required(vocabulary, controls, hermes(OSLO, NOON), is_parallel=False)


FREE = {"properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize("is_strict", [False, True])
@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "string"},
        {"type": ["object", "null"], **FREE},
        {"anyOf": [{"type": "string"}, {"type": "object", **FREE}]},
        {"$ref": "#/$defs/p", "$defs": {"p": {"type": "object", **FREE}}},
        {"$ref": "#/$defs/p", "$defs": {"p": FREE}},
        {"allOf": [FREE]},
        FREE,
    ],
)
def test_arguments_are_always_an_object(
    vocabulary: Vocabulary, controls: Controls, parameters: dict[str, object], is_strict: bool
) -> None:
    tools = [Tool(name="f", parameters=parameters, is_strict=is_strict)]
    assert required(vocabulary, controls, hermes('{"name": "f", "arguments": {"a": 1}}'), tools)
    for arguments in ('"x"', "null", "1", "[]"):
        assert not required(vocabulary, controls, hermes(f'{{"name": "f", "arguments": {arguments}}}'), tools)


def lazy(
    vocabulary: Vocabulary, controls: Controls, text: str, output_format: Constraint | None = None, **how: bool
) -> bool:
    options = {"is_parallel": True, "is_loose": False} | how
    return accepts(vocabulary, lazy_calls(HERMES, [WEATHER, NOW], controls, output_format, **options), text)


@pytest.mark.parametrize(
    "text",
    ["", "Hello.", "1 < 2\n\n", "{}", hermes(OSLO), "Let me see.\n" + hermes(OSLO, NOON)],
)
def test_optional_calls_allow_free_text_before_a_call(vocabulary: Vocabulary, controls: Controls, text: str) -> None:
    assert lazy(vocabulary, controls, text)


@pytest.mark.parametrize(
    "text", [hermes('{"name": "other"}'), "Hi <tool_call> hi", hermes(OSLO) + " bye", "</tool_call>"]
)
def test_begun_call_must_be_valid(vocabulary: Vocabulary, controls: Controls, text: str) -> None:
    assert not lazy(vocabulary, controls, text)


def test_call_requires_its_control_token(vocabulary: Vocabulary, controls: Controls) -> None:
    matcher = compile_matcher(lazy_calls(HERMES, [NOW], controls, None, is_parallel=True, is_loose=False), vocabulary)
    token_ids = TOKENIZER.encode("a <tool_call>")
    assert controls.marks["<tool_call>"] not in token_ids
    assert matcher.try_consume_tokens(token_ids) < len(token_ids)


def test_visible_control_tokens_are_allowed_in_text(vocabulary: Vocabulary, controls: Controls) -> None:
    think = TOKENIZER.encode("<|reserved_0|>", parse_special=True)
    assert len(think) == 1
    thinking = Controls(controls.marks, in_text=think)
    token_ids = TOKENIZER.encode(f"<|reserved_0|>why<|reserved_0|>{hermes(NOON)}", parse_special=True)
    for known, expected in ((thinking, True), (controls, False)):
        constraint = lazy_calls(HERMES, [NOW], known, None, is_parallel=True, is_loose=False)
        matcher = compile_matcher(constraint, vocabulary)
        assert (matcher.try_consume_tokens(token_ids) == len(token_ids)) is expected


def test_output_format_with_tools_allows_the_format_or_calls(vocabulary: Vocabulary, controls: Controls) -> None:
    schema = Constraint(
        "json_schema", '{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}'
    )
    assert lazy(vocabulary, controls, '{"n": 5}', schema)
    assert lazy(vocabulary, controls, hermes(NOON), schema)
    assert not lazy(vocabulary, controls, "Hello.", schema)
    assert not lazy(vocabulary, controls, '{"n": "5"}', schema)
    assert lazy(vocabulary, controls, '{"x": [1, {}]}', Constraint("json_object"))
    assert not lazy(vocabulary, controls, "[1]", Constraint("json_object"))


def test_tool_that_is_not_strict_ignores_unsupported_keywords(vocabulary: Vocabulary, controls: Controls) -> None:
    unsupported = Tool(name="odd", parameters={"properties": {"a": {"type": "string", "not": {"const": "x"}}}})
    assert required(vocabulary, controls, hermes('{"name": "odd", "arguments": {"a": "x"}}'), [unsupported])
    invalid = Tool(name="odd", parameters={"type": "dict", "properties": {"a": {"type": "float"}}})
    text = hermes('{"name": "odd", "arguments": {"a": [1.5]}}')
    with pytest.raises(Exception, match="cannot be used"):
        required(vocabulary, controls, text, [invalid])
    assert required(vocabulary, controls, text, [invalid], is_loose=True)
    strict = Tool(name="odd", parameters=unsupported.parameters, is_strict=True)
    with pytest.raises(Exception, match="'not'"):
        required(vocabulary, controls, hermes(NOON), [strict, NOW], is_loose=True)


def test_names_and_schemas_are_escaped_in_the_grammar(vocabulary: Vocabulary, controls: Controls) -> None:
    tool = Tool(name="a.b/c:d-e", parameters={"properties": {'"}\n start: /.*/ #': {"type": "string"}}})
    assert required(vocabulary, controls, hermes('{"name": "a.b/c:d-e", "arguments": {}}'), [tool])
    arguments = json.dumps({'"}\n start: /.*/ #': "x"})
    assert required(vocabulary, controls, hermes(f'{{"name": "a.b/c:d-e", "arguments": {arguments}}}'), [tool])
    assert not required(vocabulary, controls, "anything", [tool])
    marked = Tool(name="m", parameters={"properties": {"<a> / <b>": {"enum": ['"<c>', "/<d>/", "</tool_call>"]}}})
    for value in ('"<c>', "/<d>/", "</tool_call>"):
        arguments = json.dumps({"<a> / <b>": value})
        begin, end = (TOKENIZER.encode(mark, parse_special=True) for mark in HERMES.marks)
        inside = TOKENIZER.encode(f'\n{{"name": "m", "arguments": {arguments}}}\n')
        constraint = required_calls(HERMES, [marked], controls, is_parallel=True, is_loose=False)
        assert accepts_ids(vocabulary, constraint, [*begin, *inside, *end])


@pytest.mark.parametrize(
    ("family", "text"),
    [
        (MISTRAL, f"[TOOL_CALLS][{OSLO}, {NOON}]"),
        (LLAMA3_JSON, f"{OSLO}; {NOON}".replace("arguments", "parameters")),
    ],
)
def test_grammar_follows_the_syntax_of_the_family(vocabulary: Vocabulary, family: Family, text: str) -> None:
    constraint = required_calls(family, [WEATHER, NOW], Controls({}), is_parallel=True, is_loose=False)
    assert accepts(vocabulary, constraint, text)
    assert not accepts(vocabulary, constraint, hermes(OSLO))


@pytest.mark.parametrize("kind", KINDS)
def test_accepted_calls_of_real_tools_match_the_grammar(
    vocabulary: Vocabulary, controls: Controls, test_data: Path, kind: str
) -> None:
    num_matching = num_tried = 0
    for tools, calls in tools_and_calls(test_data, kind, 30):
        order = {tool.name: list(tool.parameters["properties"]) for tool in tools}
        outputs = []
        for call in calls:
            arguments = json.loads(call.arguments)
            ordered = {name: arguments[name] for name in order[call.name] if name in arguments}
            outputs.append(json.dumps({"name": call.name, "arguments": ordered}, ensure_ascii=False))
        num_tried += 1
        num_matching += required(vocabulary, controls, hermes(*outputs), tools)
    assert num_matching >= 0.9 * num_tried  # a few accepted calls do not match their own schema


def task(**fields: object) -> TextGeneration:
    return TextGeneration(prompt="x", **{"tools": (WEATHER, NOW), **fields})  # type: ignore[arg-type]


def plans(controls: Controls, form: ToolFormat | None = None, **fields: object) -> Iterator[str | None]:
    for constraint in make_output_plan(task(**fields), form or ToolFormat(HERMES), controls).constraints:
        yield None if constraint is None else constraint.text.splitlines()[0]


def test_plan_tries_the_strictest_constraint_first(controls: Controls) -> None:
    strict = Tool(name="now", is_strict=True)
    constraint = Constraint("json_object")
    assert list(plans(controls)) == ["start: text calls?", "start: text calls?", None]
    assert list(plans(controls, tools=(strict, WEATHER))) == ["start: text calls?"] * 2
    assert list(plans(controls, tools=(strict,))) == ["start: text calls?"]
    assert list(plans(controls, tool_choice="required")) == ["start: calls"] * 2
    assert list(plans(controls, constraint=constraint)) == ["start: formatted | calls"] * 2
    assert list(plans(Controls({}))) == [None]
    assert list(plans(controls, ToolFormat(LLAMA3_JSON))) == [None]
    assert not can_be_lazy(LLAMA3_JSON, controls)


def test_named_tool_choice_allows_one_call_of_this_tool(controls: Controls) -> None:
    plan = make_output_plan(task(tool_choice="required", named_tool="now"), ToolFormat(HERMES), controls)
    assert plan.constraints[0] is not None
    assert "get_weather" not in plan.constraints[0].text
    assert "*" not in plan.constraints[0].text.splitlines()[1]
    assert plan.tools == (WEATHER, NOW)


def test_template_without_parallel_calls_limits_the_model_to_one_call(controls: Controls) -> None:
    plan = make_output_plan(task(), ToolFormat(HERMES, supports_parallel=False), controls)
    assert not plan.is_parallel
    parser = plan.parser(None)
    assert parser is not None
    parser.push(hermes(NOON))
    assert parser.is_complete


def test_tool_choice_none_hides_the_tools(controls: Controls) -> None:
    constraint = Constraint("json_object")
    plan = make_output_plan(task(tool_choice="none", constraint=constraint), None, controls)
    assert (plan.tools, plan.constraints, plan.parser(constraint)) == ((), (constraint,), None)


def test_unusable_tools_are_refused(controls: Controls) -> None:
    with pytest.raises(ToolsRefused, match="'/tools'"):
        make_output_plan(task(), None, controls)
    with pytest.raises(ToolsRefused, match="output format"):
        make_output_plan(task(constraint=Constraint("regex", "a+")), ToolFormat(HERMES), controls)
