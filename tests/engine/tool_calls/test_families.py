"""Tests of each family's syntax: rendered calls are parsed for every split of the text, and match the grammar."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.protocol.messages import ChatMessage
from engine.protocol.tools import Tool, ToolCall
from engine.structured.compile import compile_matcher
from engine.structured.vocabulary import Vocabulary, read_vocabulary
from engine.text.chat_template import ChatTemplate
from engine.text.tokenizer import Tokenizer
from engine.tool_calls.call_parser import ReasoningPiece, ToolCallPiece
from engine.tool_calls.families import (
    APERTUS,
    COHERE,
    DEEPSEEK_V3,
    DEEPSEEK_V32,
    FAMILIES,
    GEMMA4,
    GLM,
    GRANITE,
    KIMI_K2,
    MISTRAL_NAMED,
    QWEN3_CODER,
)
from engine.tool_calls.family import Family, UnsupportedSchema
from engine.tool_calls.grammar import Controls, required_calls
from engine.tool_calls.harmony import HARMONY
from engine.tool_calls.output_parser import make_call_parser
from engine.tool_calls.tool_format import ToolFormat, find_tool_format, template_messages, template_tools
from tests.engine.tool_calls.bfcl import KINDS, tools_and_calls

SPARK = Path(__file__).parents[3] / "catalog/builtin/spark"
TOKENIZER = Tokenizer(SPARK)
SEARCH = Tool(
    name="shop.search",
    parameters={
        "type": "object",
        "properties": {
            "words": {"type": "string"},
            "most": {"type": "integer"},
            "is_new": {"type": "boolean"},
            "kinds": {"type": "array", "items": {"type": "string"}},
            "order": {"enum": ["price", "name"]},
            "note": {"type": ["string", "null"]},
        },
        "required": ["words"],
    },
)
NOW = Tool(name="now")
TOOLS = {tool.name: tool.parameters for tool in (SEARCH, NOW)}
ARGUMENTS = {
    "words": 'a "b" <c>\n ü',
    "most": 3,
    "is_new": True,
    "kinds": ["x", "y, z]"],
    "order": "name",
    "note": None,
}
BOTH = [("shop.search", ARGUMENTS), ("now", {})]

TEXTS: dict[str, str] = {
    "mistral_named": "[TOOL_CALLS]shop.search[ARGS]{A}[TOOL_CALLS]now[CALL_ID]abc123def[ARGS]{}",
    "deepseek_v31": (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>shop.search<｜tool▁sep｜>{A}<｜tool▁call▁end｜>"
        "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    "kimi_k2": (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.shop.search:0<|tool_call_argument_begin|>{A}"
        "<|tool_call_end|><|tool_call_begin|>functions.now:1<|tool_call_argument_begin|> {} <|tool_call_end|>"
        "<|tool_calls_section_end|>"
    ),
    "apertus": '<|tools_prefix|>[{"shop.search": {A}}, {"now": {}}]<|tools_suffix|>',
    "cohere": (
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "shop.search", "parameters": {A}},\n'
        '    {"tool_call_id": "1", "tool_name": "now", "parameters": {}}\n]<|END_ACTION|>'
    ),
    "granite": '<|tool_call|>[{"name": "shop.search", "arguments": {A}}, {"name": "now", "arguments": {}}]',
    "glm45": (
        "<tool_call>shop.search\n<arg_key>words</arg_key>\n<arg_value>W</arg_value>\n<arg_key>most</arg_key><arg_value>3"
        "</arg_value>\n<arg_key>is_new</arg_key>\n<arg_value>true</arg_value>\n<arg_key>kinds</arg_key>\n<arg_value>"
        '["x", "y, z]"]</arg_value>\n<arg_key>order</arg_key>\n<arg_value>name</arg_value>\n<arg_key>note</arg_key>\n'
        "<arg_value>null</arg_value>\n</tool_call>\n<tool_call>now\n</tool_call>"
    ),
    "qwen3_coder": (
        "<tool_call>\n<function=shop.search>\n<parameter=words>\nW\n</parameter>\n<parameter=most>\n3\n</parameter>\n"
        "<parameter=is_new>\nTrue\n</parameter>\n<parameter=kinds>\n['x', 'y, z]']\n</parameter>\n<parameter=order>\n"
        "name\n</parameter>\n<parameter=note>\nNone\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n"
        "<function=now>\n</function>\n</tool_call>"
    ),
    "deepseek_v32": (
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="shop.search">\n<｜DSML｜parameter name="words" string="true">W'
        '</｜DSML｜parameter>\n<｜DSML｜parameter name="most" string="false">3</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="is_new" string="false">true</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="kinds" string="false">["x", "y, z]"]</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="order" string="true">name</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="note" string="false">null</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
        '<｜DSML｜invoke name="now">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>'
    ),
    "phi4_mini_json": 'functools[{"name": "shop.search", "arguments": {A}}, {"name": "now", "arguments": {}}]',
    "gemma4": (
        '<|tool_call>call:shop.search{is_new:true,kinds:[<|"|>x<|"|>,<|"|>y, z]<|"|>],most:3,note:None,order:<|"|>name'
        '<|"|>,words:<|"|>W<|"|>}<tool_call|><|tool_call>call:now{}<tool_call|>'
    ),
}
BROKEN: list[tuple[Family, str]] = [
    (MISTRAL_NAMED, "[TOOL_CALLS]other[ARGS]{}"),
    (MISTRAL_NAMED, "[TOOL_CALLS]now[ARGS][1]"),
    (MISTRAL_NAMED, "[TOOL_CALLS]now[ARGS]{1}"),
    (MISTRAL_NAMED, "[TOOL_CALLS]now[AR"),
    (DEEPSEEK_V3, "<｜tool▁calls▁begin｜> <｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n[]\n```"),
    (KIMI_K2, "<|tool_calls_section_begin|><|tool_call_begin|>functions.x:0<|tool_call_argument_begin|>{}"),
    (GLM, "<tool_call>now<arg_key>a</arg_key>b</tool_call>"),
    (GLM, "<tool_call>now and then</tool_call>"),
    (QWEN3_CODER, "<tool_call>\n<function=now>\n<parameter=a>\n1\n</parameter>\n"),
    (QWEN3_CODER, "<tool_call>\n<function=now>\n<parameter=a>1</parameter><parameter=a>2</parameter></function>"),
    (QWEN3_CODER, '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'),
    (DEEPSEEK_V32, '<｜DSML｜function_calls>\n<｜DSML｜invoke name="other">\n</｜DSML｜invoke>'),
    (GEMMA4, "<|tool_call>call:other{}<tool_call|>"),
    (GEMMA4, "<|tool_call>call:now{a:1,a:2}<tool_call|>"),
    (GEMMA4, "<|tool_call>call:now{a:}<tool_call|>"),
    (GEMMA4, "<|tool_call>call:now{a:1,}<tool_call|>"),
    (GEMMA4, "<|tool_call>call:now{a:[1}<tool_call|>"),
    (GEMMA4, "<|tool_call>call:now{[]}<tool_call|>"),
    (GEMMA4, '<|tool_call>call:now{a:<|"|>b'),
    (GEMMA4, "<|tool_call>now{}<tool_call|>"),
    (GEMMA4, "<|tool_call>call:now{a:" + "[" * 70 + "]" * 70 + "}<tool_call|>"),
    (COHERE, '<|START_ACTION|>[{"tool_name": 5}]<|END_ACTION|>'),
    (GRANITE, '<|tool_call|>[{"name": "other", "arguments": {}}]'),
    (APERTUS, '<|tools_prefix|>[{"now": 5}]'),
]  # fmt: skip

Parsed = tuple[str, list[tuple[str, Any]]]


def text_of(name: str) -> str:
    spelled = TEXTS[name].replace("{A}", json.dumps(ARGUMENTS, ensure_ascii=False))
    return spelled.replace("W", ARGUMENTS["words"])  # type: ignore[arg-type]


def parse(family: Family, parts: Sequence[str], tools: Any = None, *, is_constrained: bool = False) -> Parsed:
    parser = make_call_parser(
        family, TOOLS if tools is None else tools, is_constrained=is_constrained, is_parallel=True
    )
    pieces = [piece for part in parts for piece in parser.push(part)] + parser.flush()
    calls: dict[int, list[ToolCallPiece]] = {}
    for piece in pieces:
        assert piece not in ("", ReasoningPiece(""))
        if isinstance(piece, ToolCallPiece):
            calls.setdefault(piece.index, []).append(piece)
    assert all(of[0].name and not any(piece.name for piece in of[1:]) for of in calls.values())
    found = [(of[0].name or "", json.loads("".join(piece.arguments for piece in of))) for of in calls.values()]
    return "".join(piece for piece in pieces if isinstance(piece, str)), found


def parse_cut_output(family: Family, parts: Sequence[str], *, is_constrained: bool) -> tuple[str, list[str], list[str]]:
    """Return content, names and arguments (as texts) of an output that the token limit cut short."""
    parser = make_call_parser(family, TOOLS, is_constrained=is_constrained, is_parallel=True)
    pieces = [piece for part in parts for piece in parser.push(part)] + parser.flush(is_cut=True)
    deltas = [piece for piece in pieces if isinstance(piece, ToolCallPiece)]
    names = [piece.name for piece in deltas if piece.name is not None]
    arguments = ["".join(p.arguments for p in deltas if p.index == index) for index in range(len(names))]
    return "".join(piece for piece in pieces if isinstance(piece, str)), names, arguments


def cut(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("is_constrained", [False, True])
def test_calls_are_parsed_for_every_split(name: str, is_constrained: bool) -> None:
    family, text = FAMILIES[name], text_of(name)
    assert parse(family, [text], is_constrained=is_constrained) == ("", BOTH)
    for size in (1, 2, 3, 7):
        assert parse(family, cut(text, size), is_constrained=is_constrained) == ("", BOTH)
    for at in range(len(text)):
        assert parse(family, [text[:at], text[at:]], is_constrained=is_constrained) == ("", BOTH)


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("is_constrained", [False, True])
def test_call_cut_by_the_limit_is_returned_as_far_as_it_goes(name: str, is_constrained: bool) -> None:
    family, text = FAMILIES[name], text_of(name)
    _, names, whole = parse_cut_output(family, [text], is_constrained=is_constrained)
    num_characters: list[int] = []  # length of the arguments for each length of the output
    for at in range(len(text)):
        content, found, arguments = parsed = parse_cut_output(family, [text[:at]], is_constrained=is_constrained)
        if at % 16 == 0:
            assert parse_cut_output(family, list(text[:at]), is_constrained=is_constrained) == parsed
        assert found == names[: len(found)]
        assert all(map(str.startswith, whole, arguments))
        assert arguments[:-1] == whole[: len(found)][:-1]
        if is_constrained:
            assert family.opening.startswith(content)  # an incomplete opening may be content
        else:
            assert text[:at].endswith(content)
            assert found or content == text[:at]
        num_characters.append(sum(map(len, arguments)))
    assert num_characters == sorted(num_characters)
    assert len(set(num_characters)) > len(ARGUMENTS)  # every argument adds characters


@pytest.mark.parametrize("name", TEXTS)
def test_text_before_and_after_calls_is_content(name: str) -> None:
    family, text = FAMILIES[name], f"Let me see.\n{text_of(name)}\nDone."
    assert {str(parse(family, cut(text, size))) for size in (1, 5, len(text))} == {str(parse(family, [text]))}
    content, calls = parse(family, [text])
    assert (content.startswith("Let me see."), content.endswith("Done."), calls) == (True, True, BOTH)


@pytest.mark.parametrize(("family", "text"), BROKEN)
def test_text_that_is_not_a_call_is_content_unchanged(family: Family, text: str) -> None:
    for size in (1, 2, 5, len(text)):
        assert parse(family, cut(text, size)) == (text, [])


_noise = st.sampled_from(
    ["<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "now", "<function=now>", "</function>", "<parameter=a>",
     "</parameter>", "<arg_key>a</arg_key>", "<arg_value>", "</arg_value>", "[", "now(", "a=", "'x'", ")", "]", ",",
     "{}", '{"a": [1]}', "{", "\n", " ", "<", "\\", "ü", "1", "call:now{", "a:", "<tool_call|>", '<|"|>', "}"]
)  # fmt: skip


@given(
    st.sampled_from((MISTRAL_NAMED, GLM, QWEN3_CODER, GEMMA4)),
    st.lists(_noise, max_size=14),
    st.data(),
)
def test_any_text_gives_the_same_result_for_every_split(family: Family, noise: list[str], data: st.DataObject) -> None:
    text = family.opening * data.draw(st.booleans()) + "".join(noise)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    parts = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert parse(family, parts) == parse(family, [text])


def test_constrained_call_streams_its_name_and_then_its_arguments() -> None:
    for family, begin, more in (
        (QWEN3_CODER, "<tool_call>\n<function=shop.search>\n<parameter=words>\nso", " far"),
        (GLM, "<tool_call>shop.search\n<arg_key>words</arg_key>\n<arg_value>so", " far"),
        (MISTRAL_NAMED, '[TOOL_CALLS]shop.search[ARGS]{"words": "so', " far"),
        (GEMMA4, '<|tool_call>call:shop.search{words:<|"|>so', " far"),
    ):
        parser = make_call_parser(family, TOOLS, is_constrained=True, is_parallel=True)
        first = parser.push(begin)
        assert first[0] == ToolCallPiece(0, "shop.search", "")
        assert "".join(piece.arguments for piece in first if isinstance(piece, ToolCallPiece)) == '{"words": "so'
        assert parser.push(more) == [ToolCallPiece(0, None, more)]


# Template name -> name of the family that is found for the template.
TEMPLATES = {
    "mistralai-Ministral-3-14B-Reasoning-2512": "mistral_named",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": "deepseek_v3",
    "deepseek-ai-DeepSeek-V3.1": "deepseek_v31",
    "deepseek-ai-DeepSeek-V3.2": "deepseek_v32",
    "deepseek-ai-DeepSeek-V4": "deepseek_v4",
    "moonshotai-Kimi-K2": "kimi_k2",
    "GLM-4.6": "glm45",
    "GLM-5.2": "glm45",
    "Qwen3-Coder": "qwen3_coder",
    "Qwen3.5-4B": "qwen3_coder",
    "stepfun-ai-Step-3.5-Flash": "qwen3_coder",
    "Apertus-8B-Instruct": "apertus",
    "google-gemma-4-31B-it": "gemma4",
    "openai-gpt-oss-120b": "harmony",
}
ENDS = (
    "<|tool_response>",
    "</s>",
    "<|im_end|>",
    "<|eom_id|>",
    "<|call|>",
    "<｜end▁of▁sentence｜>",
)
THOUGHTS = ("<think>\n\n</think>", "<think></think>", "</think>")


class Template:
    """One model's chat template, and the outputs that it renders for calls."""

    def __init__(self, test_data: Path, name: str) -> None:
        source = (test_data / "templates" / f"{name}.jinja").read_text()
        self.template = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})
        form = find_tool_format(self.template.render)
        assert form is not None
        self.form: ToolFormat = form

    def output(self, tools: Sequence[Tool], calls: Sequence[ToolCall]) -> str:
        def render(message: ChatMessage) -> str:
            turns = template_messages([ChatMessage("user", "Q"), message], self.form)
            return self.template.render(turns, tools=template_tools(tools), add_generation_prompt=False)

        with_calls, with_text = (
            render(ChatMessage("assistant", tool_calls=tuple(calls))),
            render(ChatMessage("assistant", "\0")),
        )
        at = next(at for at, pair in enumerate(zip(with_calls, with_text, strict=False)) if pair[0] != pair[1])
        output = with_calls[at:]
        for end in ENDS:
            output = output.partition(end)[0]
        if self.form.family is HARMONY:
            return output
        for thought in THOUGHTS:
            output = output.strip().removeprefix(thought)
        return output.strip()


def in_order(tools: Sequence[Tool], calls: Sequence[ToolCall]) -> list[ToolCall]:
    """Return the calls with arguments in the order of the schema, as the grammar has them."""
    order = {tool.name: list(tool.parameters["properties"]) for tool in tools}
    ordered = []
    for call in calls:
        found = json.loads(call.arguments)
        arguments = {name: found[name] for name in order[call.name] if name in found}
        ordered.append(ToolCall(id=call.id, name=call.name, arguments=json.dumps(arguments, ensure_ascii=False)))
    return ordered


def check_round_trip(test_data: Path, name: str, vocabulary: Vocabulary, most: int) -> tuple[int, int]:
    """Return how many accepted calls were parsed unchanged, and how many of these match the grammar."""
    template = Template(test_data, name)
    family = template.form.family
    assert family.name == TEMPLATES[name]
    num_parsed = num_matching = 0
    for kind in KINDS:
        for tools, accepted in tools_and_calls(test_data, kind, most):
            calls = in_order(tools, accepted)
            if len(calls) > 1 and not template.form.supports_parallel:
                continue
            output = template.output(tools, calls)
            schemas = {tool.name: tool.parameters for tool in tools}
            expected = [(call.name, json.loads(call.arguments)) for call in calls]
            for size in (len(output), 1, 4):
                content, found = parse(family, cut(output, size), schemas)
                assert (content.strip(), found) == ("", expected), output
            num_parsed += 1
            constraint = required_calls(family, tools, Controls({}), is_parallel=True, is_loose=False)
            matcher, token_ids = compile_matcher(constraint, vocabulary), TOKENIZER.encode(output)
            is_match = matcher.try_consume_tokens(token_ids) == len(token_ids) and matcher.is_accepting()
            num_matching += is_match
            if is_match:
                assert parse(family, cut(output, 3), schemas, is_constrained=True) == ("", expected)
    return num_parsed, num_matching


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return read_vocabulary(SPARK, 4096, (0, 2))


@pytest.mark.parametrize("name", TEMPLATES)
def test_accepted_calls_match_the_grammar_and_are_parsed_unchanged(
    test_data: Path, vocabulary: Vocabulary, name: str
) -> None:
    num_parsed, num_matching = check_round_trip(test_data, name, vocabulary, 3)
    assert num_parsed >= 6
    assert num_matching >= num_parsed - 1


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", TEMPLATES)
def test_all_accepted_calls_are_parsed_and_most_match_the_grammar(
    test_data: Path, vocabulary: Vocabulary, name: str
) -> None:
    num_parsed, num_matching = check_round_trip(test_data, name, vocabulary, 400)
    assert num_parsed >= 590
    assert num_matching >= 0.9 * num_parsed  # a few accepted calls do not match their own schema


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("['a', 'b']", ["a", "b"]),
        ("['a\"b', \"it's\"]", ['a"b', "it's"]),
        ("['a]</parameter>b', 'c']", ["a]</parameter>b", "c"]),
        ('["it\'s </parameter>"]', ["it's </parameter>"]),
        ("[True, None, (1, -2.5)]", [True, None, [1, -2.5]]),
        ("['don't']", "['don't']"),  # not a literal
    ],
)
@pytest.mark.parametrize("size", [1, 7, 500])
def test_values_in_python_syntax_end_at_their_own_bracket(value: str, expected: object, size: int) -> None:
    text = f"<function=f>\n<parameter=a>{value}</parameter>\n<parameter=n>3</parameter>\n</function>"
    reader, left = QWEN3_CODER.reader({"f": {"properties": {"a": {"type": ["array", "string"]}, "n": {}}}}), ""
    for at in range(0, len(text), size):
        left += text[at : at + size]
        left = left[reader.push(left) :]
    call = reader.call()
    assert reader.is_complete
    assert call is not None
    assert json.loads(call[1]) == {"a": expected, "n": 3}


def test_strict_tool_that_the_syntax_cannot_enforce_is_refused() -> None:
    def grammar(parameters: dict[str, Any], *, is_strict: bool) -> str:
        tool = Tool(name="f", parameters=parameters, is_strict=is_strict)
        return required_calls(QWEN3_CODER, [tool], Controls({}), is_parallel=False, is_loose=False).text

    for parameters in (
        {"properties": {"a": {"type": "string", "pattern": "^x+$"}}},
        {"anyOf": [{"properties": {"a": {}}}]},
        {"properties": {"a>b": {"type": "string"}}},
    ):
        with pytest.raises(UnsupportedSchema):
            grammar(parameters, is_strict=True)
        assert grammar(parameters, is_strict=False)


def matches_grammar(vocabulary: Vocabulary, family: Family, text: str, tool: Tool = SEARCH) -> bool:
    constraint = required_calls(family, [tool], Controls({}), is_parallel=False, is_loose=False)
    matcher, token_ids = compile_matcher(constraint, vocabulary), TOKENIZER.encode(text)
    return matcher.try_consume_tokens(token_ids) == len(token_ids) and bool(matcher.is_accepting())


def test_constrained_model_writes_arguments_that_match_their_schema(vocabulary: Vocabulary) -> None:
    def coder(pairs: str) -> str:
        return f"<tool_call>\n<function=shop.search>\n{pairs}</function>\n</tool_call>"

    words = "<parameter=words>\na\n</parameter>\n"
    for pairs, expected in (
        (words, True),
        ("<parameter=words>\n</tool_call> </x>\n</parameter>\n", True),
        ("", False),
        (words + "<parameter=most>\nmany\n</parameter>\n", False),
        (words + "<parameter=order>\nsize\n</parameter>\n", False),
        (words + "<parameter=colour>\nred\n</parameter>\n", False),
        (words + '<parameter=kinds>\n["a"]\n</parameter>\n<parameter=order>\nprice\n</parameter>\n', True),
    ):
        assert matches_grammar(vocabulary, QWEN3_CODER, coder(pairs)) is expected
    for arguments, expected in (
        ('words:<|"|>a<|"|>', True),
        ('kinds:[<|"|>a<|"|>,<|"|>b<|"|>],most:3,order:<|"|>name<|"|>,words:<|"|>a<|"|>', True),
        ('is_new:true,note:null,words:<|"|>a<|"|>', True),
        ("most:3", False),
        ('most:<|"|>3<|"|>,words:<|"|>a<|"|>', False),
        ('order:<|"|>size<|"|>,words:<|"|>a<|"|>', False),
        ('words:<|"|>a<|"|>,most:3', False),  # not in alphabetical order
        ('colour:<|"|>red<|"|>,words:<|"|>a<|"|>', False),
    ):
        assert (
            matches_grammar(vocabulary, GEMMA4, f"<|tool_call>call:shop.search{{{arguments}}}<tool_call|>") is expected
        )


def test_bare_keys_enforce_the_items_of_lists_and_accept_any_nested_object(vocabulary: Vocabulary) -> None:
    parameters = {
        "type": "object",
        "properties": {
            "names": {"type": "array", "items": {"type": "string"}},
            "place": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
    tool = Tool(name="find", parameters=parameters)
    for arguments, expected in (
        ('names:[<|"|>a<|"|>,<|"|>b<|"|>]', True),
        ("names:[1]", False),
        ('place:{city:<|"|>Oslo<|"|>,zip:{code:[1,null]}}', True),
        ("place:1", False),
        ("", True),
    ):
        text = f"<|tool_call>call:find{{{arguments}}}<tool_call|>"
        assert matches_grammar(vocabulary, GEMMA4, text, tool) is expected


def test_recursive_schema_gives_a_grammar_of_limited_size() -> None:
    node: dict[str, Any] = {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/node"}}] * 20}
    tool = Tool(name="f", parameters={"properties": {"a": {"$ref": "#/$defs/node"}}, "$defs": {"node": node}})
    with pytest.raises(UnsupportedSchema, match="too many"):
        required_calls(GEMMA4, [tool], Controls({}), is_parallel=False, is_loose=False)
    assert len(required_calls(QWEN3_CODER, [tool], Controls({}), is_parallel=False, is_loose=False).text) < 10_000
    assert required_calls(GEMMA4, [tool], Controls({}), is_parallel=False, is_loose=True)


@pytest.mark.parametrize("part", [
    {"type": "string", "pattern": "^x+$"}, {"type": "array", "maxItems": 2}, {"allOf": [{}]}, {"enum": [[1]]},
    {"type": "object", "properties": {"b": {"type": "string"}}},
])  # fmt: skip
def test_strict_tool_that_bare_keys_cannot_enforce_is_refused(part: dict[str, Any]) -> None:
    for is_strict in (True, False):
        tool = Tool(name="f", parameters={"properties": {"a": part}}, is_strict=is_strict)
        if is_strict:
            with pytest.raises(UnsupportedSchema):
                required_calls(GEMMA4, [tool], Controls({}), is_parallel=False, is_loose=False)
        else:
            assert required_calls(GEMMA4, [tool], Controls({}), is_parallel=False, is_loose=False)
