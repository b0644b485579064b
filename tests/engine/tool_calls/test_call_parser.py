"""Tests of the parser of calls: content and calls are the same for every split; text that is not a call is content."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.protocol.messages import ChatMessage
from engine.protocol.tools import ToolCall
from engine.text.chat_template import ChatTemplate
from engine.tool_calls.call_parser import CallParser, ToolCallPiece
from engine.tool_calls.families import (
    DEEPSEEK_V3,
    GEMMA4,
    GRANITE,
    HERMES,
    LLAMA3_JSON,
    MISTRAL,
    QWEN3_CODER,
)
from engine.tool_calls.family import Family
from engine.tool_calls.tool_format import ToolFormat, template_messages, template_tools
from tests.engine.tool_calls.bfcl import KINDS, tools_and_calls

FIRST = '{"name": "f", "arguments": {"a": "x}\\"{</tool_call>", "b": [1, {"c": "ü"}]}}'
SECOND = '{"name": "g", "arguments": {}}'
FIRST_CALL = ("f", '{"a": "x}\\"{</tool_call>", "b": [1, {"c": "ü"}]}')
SECOND_CALL = ("g", "{}")
BOTH = [FIRST_CALL, SECOND_CALL]

ONE_OF_EACH = (HERMES, MISTRAL, LLAMA3_JSON, DEEPSEEK_V3, QWEN3_CODER, GEMMA4)

Parsed = tuple[str, list[tuple[str, str]]]


def parse(
    family: Family,
    parts: Sequence[str],
    tools: Sequence[str] = ("f", "g"),
    *,
    is_constrained: bool = False,
    is_parallel: bool = True,
) -> Parsed:
    """Return content, and calls as (name, arguments)."""
    parser = CallParser(family, set(tools), is_constrained=is_constrained, is_parallel=is_parallel)
    pieces = [piece for part in parts for piece in parser.push(part)] + parser.flush()
    assert "" not in pieces
    calls: dict[int, list[ToolCallPiece]] = {}
    for piece in pieces:
        if isinstance(piece, ToolCallPiece):
            calls.setdefault(piece.index, []).append(piece)
    assert list(calls) == list(range(len(calls)))
    assert all(of[0].name and not any(piece.name for piece in of[1:]) for of in calls.values())
    content = "".join(piece for piece in pieces if isinstance(piece, str))
    return content, [(of[0].name or "", "".join(piece.arguments for piece in of)) for of in calls.values()]


CALLS: list[tuple[Family, str, Parsed]] = [
    (HERMES, f"<tool_call>\n{FIRST}\n</tool_call>", ("", [FIRST_CALL])),
    (HERMES, f"<tool_call>{FIRST}</tool_call>", ("", [FIRST_CALL])),
    (HERMES, f"<tool_call>{FIRST}", ("", [FIRST_CALL])),
    (HERMES, f"<tool_call>{FIRST}\n</tool_", ("", [FIRST_CALL])),
    (HERMES, f"Let me see.\n<tool_call>\n{SECOND}\n</tool_call>\n", ("Let me see.", [SECOND_CALL])),
    (HERMES, f"<tool_call>\n{FIRST}\n</tool_call>\n<tool_call>\n{SECOND}\n</tool_call>", ("", BOTH)),
    (HERMES, f"a<tool_call>{FIRST}</tool_call> b <tool_call>{SECOND}</tool_call> c", ("a b c", BOTH)),
    (MISTRAL, f"[TOOL_CALLS][{FIRST}, {SECOND}]", ("", BOTH)),
    (MISTRAL, f"Sure. [TOOL_CALLS] [ {SECOND} ]", ("Sure.", [SECOND_CALL])),
    (MISTRAL, f"[TOOL_CALLS]{SECOND}", ("", [SECOND_CALL])),
    (MISTRAL, f'[TOOL_CALLS][{SECOND[:-1]}, "id": "abcdefghi"}}]', ("", [SECOND_CALL])),
    (LLAMA3_JSON, FIRST.replace("arguments", "parameters"), ("", [FIRST_CALL])),
    (LLAMA3_JSON, f"\n {FIRST}; {SECOND}", ("", BOTH)),
    (LLAMA3_JSON, f"<|python_tag|>{FIRST}", ("", [FIRST_CALL])),
    (LLAMA3_JSON, f"Well. <|python_tag|>{SECOND}", ("Well.", [SECOND_CALL])),
    (LLAMA3_JSON, f'{{"type": "function", {SECOND[1:]}', ("", [SECOND_CALL])),
]  # fmt: skip
NO_CALLS: list[tuple[Family, str]] = [
    *((family, text) for family in ONE_OF_EACH for text in ("", " ", "Hello.", " a \n\n b ", "{", "[1]", "a{b")),
    (HERMES, "<tool_call> is what calls begin with"),
    (HERMES, "<tool_call>\n{bad}\n</tool_call>"),
    (HERMES, '<tool_call>{"name": "other", "arguments": {}}</tool_call>'),
    (HERMES, '<tool_call>{"name": ["f"], "arguments": {}}</tool_call>'),
    (HERMES, '<tool_call>{"name": "f", "arguments": [1]}</tool_call>'),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"a": 1'),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"a": nope}}</tool_call>'),
    (HERMES, "<tool_c"),
    (HERMES, "<tool_call>"),
    (MISTRAL, "[TOOL_CALLS] nothing"),
    (MISTRAL, "[TOOL_CALLS][[1]]"),
    (MISTRAL, "[TOOL_CALLS"),
    (LLAMA3_JSON, '{"answer": 42}'),
    (LLAMA3_JSON, '{"name": "Ann", "age": 3} is a record'),
    (LLAMA3_JSON, 'It is {"name": "f", "parameters": {}}'),
    (LLAMA3_JSON, "<|python_tag|>print(1)"),
]  # fmt: skip


@pytest.mark.parametrize(("family", "text", "expected"), CALLS)
def test_calls_are_found(family: Family, text: str, expected: Parsed) -> None:
    assert parse(family, [text]) == expected


@pytest.mark.parametrize(("family", "text"), NO_CALLS)
def test_text_that_is_not_a_call_is_content_unchanged(family: Family, text: str) -> None:
    assert parse(family, [text]) == (text, [])


def test_call_without_end_does_not_hide_later_calls() -> None:
    broken = '<tool_call>\n{"name": "f", "arguments": {"a": "oops}\n</tool_call>\n'
    assert parse(HERMES, [broken + f"<tool_call>\n{SECOND}\n</tool_call>"]) == (broken, [SECOND_CALL])
    assert parse(MISTRAL, [f"[TOOL_CALLS][{SECOND}, oops]"]) == (", oops]", [SECOND_CALL])


@pytest.mark.parametrize("family", ONE_OF_EACH)
@pytest.mark.parametrize("unit", ["{", '{"name": "f", "arguments": {', '{"name": "f", "arguments": {"a": ['])
def test_calls_without_end_are_parsed_in_linear_time(family: Family, unit: str) -> None:
    parts = [family.opening + unit] * 3000
    started = time.process_time()
    assert parse(family, parts) == ("".join(parts), [])
    assert time.process_time() - started < 2


def test_endless_first_field_becomes_content_early() -> None:
    parser = CallParser(HERMES, {"f"}, is_constrained=False)
    assert parser.push('<tool_call>{"parameters') == []
    assert parser.push("s") == ['<tool_call>{"parameterss']
    started = time.process_time()
    parse(HERMES, ['<tool_call>{"', *["aaaa "] * 5000])
    assert time.process_time() - started < 1


def test_long_name_in_json_output_is_parsed_in_linear_time() -> None:
    parts = ['{"name": "', *["aaaa "] * 16_000]
    started = time.process_time()
    assert parse(LLAMA3_JSON, parts, is_constrained=True) == ("".join(parts), [])
    assert time.process_time() - started < 1.5


def test_several_calls_without_end_do_not_hide_later_calls() -> None:
    broken = '<tool_call>{"name": "f", "arguments": {"a": '
    assert parse(HERMES, [broken * 7 + f"<tool_call>{SECOND}</tool_call>"]) == (broken * 7, [SECOND_CALL])


def test_arguments_may_precede_the_name_or_be_missing() -> None:
    assert parse(HERMES, ['<tool_call>{"arguments": {"a": 1}, "name": "f"}']) == ("", [("f", '{"a":1}')])
    assert parse(HERMES, ['<tool_call>{"name": "f"}']) == ("", [("f", "{}")])


@pytest.mark.parametrize(
    ("family", "text"), [(family, text) for family, text, _ in CALLS] + [(family, text) for family, text in NO_CALLS]
)
@pytest.mark.parametrize("is_constrained", [False, True])
def test_result_does_not_depend_on_the_split(family: Family, text: str, is_constrained: bool) -> None:
    expected = parse(family, [text], is_constrained=is_constrained)
    for size in (1, 2, 3, 5, 7, 11):
        assert (
            parse(family, [text[at : at + size] for at in range(0, len(text), size)], is_constrained=is_constrained)
            == expected
        )
    for at in range(len(text)):
        assert parse(family, [text[:at], text[at:]], is_constrained=is_constrained) == expected


_noise = st.sampled_from(
    ["<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", FIRST, SECOND, "{", "}", "[", "]", '"', "\\", ",",
     ";", " ", "\n", "hello", '{"name": "f"', "<", "<tool", "ü"]
)  # fmt: skip


@given(st.sampled_from((HERMES, MISTRAL, LLAMA3_JSON)), st.lists(_noise, max_size=12), st.data())
def test_any_text_gives_the_same_result_for_every_split(family: Family, noise: list[str], data: st.DataObject) -> None:
    text = "".join(noise)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    parts = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = parse(family, [text])
    assert parse(family, parts) == whole
    if not whole[1]:
        assert whole[0] == text


def test_constrained_arguments_are_streamed() -> None:
    parser = CallParser(HERMES, {"f"}, is_constrained=True)
    assert parser.push('Hm.\n<tool_call>\n{"name": "f", "argu') == ["Hm."]
    assert parser.push('ments": {') == [ToolCallPiece(0, "f", ""), ToolCallPiece(0, None, "{")]
    assert parser.push('"a": "so') == [ToolCallPiece(0, None, '"a": "so')]
    assert parser.num_calls == 0
    assert parser.push(' far"}}') == [ToolCallPiece(0, None, ' far"}')]
    assert parser.num_calls == 1
    assert parser.push("\n</tool_call>") == parser.flush() == []


def test_cut_constrained_call_is_neither_complete_nor_content() -> None:
    parser = CallParser(HERMES, {"f"}, is_constrained=True)
    assert len(parser.push('<tool_call>\n{"name": "f", "arguments": {"a": 1')) == 2
    assert (parser.flush(), parser.num_calls) == ([], 0)


@pytest.mark.parametrize(
    "output", ['{"name": "f", "age": 3}', '{"name": "f"}', '{"name": "Ann", "parameters": {"a": 1}}', '{"a": {"b": 1}}']
)
def test_constrained_json_output_is_not_a_call(output: str) -> None:
    for parts in ([output], list(output)):
        assert parse(LLAMA3_JSON, parts, is_constrained=True) == (output, [])


def test_output_is_complete_after_the_first_call_without_parallel_calls() -> None:
    for family in (HERMES, MISTRAL, LLAMA3_JSON, GRANITE):
        opening = family.opening + family.head
        text = f"{opening}{FIRST}{family.between}{SECOND}{family.tail} and more"
        assert parse(family, [text], is_parallel=False) == ("", [FIRST_CALL])
    parser = CallParser(HERMES, {"f"}, is_constrained=False, is_parallel=False)
    parser.push(f"<tool_call>{FIRST}")
    assert parser.is_complete


TEMPLATES = {
    "Qwen-Qwen2.5-7B-Instruct": HERMES,
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": HERMES,
    "mistralai-Mistral-Nemo-Instruct-2407": MISTRAL,
    "meta-llama-Llama-3.1-8B-Instruct": LLAMA3_JSON,
}


def rendered_output(template: ChatTemplate, form: ToolFormat, calls: Sequence[ToolCall], tools: Any) -> str:
    """Return the output of a model for which its template renders these calls."""
    user, mark = ChatMessage("user", "Q"), "output-begins-here"
    with_calls = template_messages([user, ChatMessage("assistant", tool_calls=tuple(calls))], form)
    rendered = template.render(with_calls, tools=tools, add_generation_prompt=False)
    with_text = template_messages([user, ChatMessage("assistant", mark)], form)
    begin = template.render(with_text, tools=tools, add_generation_prompt=False).index(mark)
    return rendered[begin:]


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("kind", KINDS)
def test_calls_rendered_by_model_templates_are_parsed_unchanged(test_data: Path, name: str, kind: str) -> None:
    family = TEMPLATES[name]
    source = (test_data / "templates" / f"{name}.jinja").read_text()
    template = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})
    form = ToolFormat(family)
    num_parsed = 0
    for tools, calls in tools_and_calls(test_data, kind, 40):
        if family is LLAMA3_JSON and len(calls) > 1:
            continue  # the template renders one call per turn
        output = rendered_output(template, form, calls, template_tools(tools))
        for end in ("</s>", "<|im_end|>", "<|eot_id|>"):
            output = output.split(end)[0]
        names = [tool.name for tool in tools]
        for size in (len(output), 1, 4):
            parts = [output[at : at + size] for at in range(0, len(output), size)]
            content, found = parse(family, parts, names)
            assert content.strip() == ""
            assert [(name, json.loads(arguments)) for name, arguments in found] == [
                (call.name, json.loads(call.arguments)) for call in calls
            ]
        num_parsed += 1
    assert num_parsed >= 20 or family is LLAMA3_JSON
