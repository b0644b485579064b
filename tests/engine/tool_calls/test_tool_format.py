"""Tests of the tool format: how it is found in a chat template, and conversations in the form templates expect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest

from catalog.card import ToolParser
from engine.protocol.messages import ChatMessage
from engine.protocol.tools import Tool, ToolCall
from engine.text.chat_template import ChatTemplate
from engine.tool_calls.families import (
    FAMILIES,
    GEMMA4,
    GRANITE,
    HARMONY,
    HERMES,
    KIMI_K2,
    LLAMA3_JSON,
    MISTRAL,
    MISTRAL_NAMED,
    QWEN3_CODER,
)
from engine.tool_calls.tool_format import ToolFormat, find_tool_format, template_messages, template_tools

SPARK = Path(__file__).parents[3] / "catalog/builtin/spark/tokenizer_config.json"
CALL = ToolCall(id="c1", name="f", arguments='{"a": "ü"}')


def form_of(source: str, name: str | None = None) -> ToolFormat | None:
    template = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})
    return find_tool_format(template.render, name, template.words if template.reads_tools else ())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Qwen-Qwen2.5-7B-Instruct", ToolFormat(HERMES)),
        ("Qwen-Qwen3-0.6B", ToolFormat(HERMES)),
        ("NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", ToolFormat(HERMES)),
        ("mistralai-Mistral-Nemo-Instruct-2407", ToolFormat(MISTRAL)),
        ("meta-llama-Llama-3.1-8B-Instruct", ToolFormat(LLAMA3_JSON, supports_parallel=False)),
        ("meta-llama-Llama-3.3-70B-Instruct", ToolFormat(LLAMA3_JSON, supports_parallel=False)),
        ("mistralai-Ministral-3-14B-Reasoning-2512", ToolFormat(MISTRAL_NAMED)),
        ("Qwen3-Coder", ToolFormat(QWEN3_CODER)),
        ("openai-gpt-oss-120b", ToolFormat(HARMONY, supports_parallel=False)),
        ("ibm-granite-granite-3.3-2B-Instruct", ToolFormat(GRANITE)),
        ("google-gemma-4-31B-it-interleaved", ToolFormat(GEMMA4)),
        ("Kimi-K2-Instruct", ToolFormat(KIMI_K2)),
        ("Kimi-K2-Thinking", ToolFormat(KIMI_K2)),
        ("google-gemma-2-2b-it", None),
        ("classic/chatml", None),
        ("LFM2-8B-A1B", None),
    ],
)
def test_tool_format_is_found_in_the_template(test_data: Path, name: str, expected: ToolFormat | None) -> None:
    assert form_of((test_data / "templates" / f"{name}.jinja").read_text()) == expected


def test_built_in_model_has_a_tool_format() -> None:
    assert form_of(json.loads(SPARK.read_text())["chat_template"]) == ToolFormat(HERMES)


def test_template_that_concatenates_strings_gets_arguments_as_text() -> None:
    call = """'<tool_call>{"name": "' + c.function.name + '", "arguments": ' + c.function.arguments + '}</tool_call>'"""
    source = "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ " + call + " }}{% endfor %}{% endfor %}"
    form = form_of(source)
    assert form == ToolFormat(HERMES, arguments_as_text=True)
    shown = template_messages([ChatMessage("assistant", tool_calls=(CALL,))], form)
    assert shown[0]["tool_calls"][0]["function"]["arguments"] == CALL.arguments


def test_model_card_names_the_family_if_the_template_does_not() -> None:
    assert form_of("{{ messages }}", "mistral") == ToolFormat(MISTRAL)
    assert form_of("{{ messages }}") is None
    assert form_of("{{ raise_exception('no') }}", "hermes") == ToolFormat(HERMES)


def test_model_cards_accept_the_same_families() -> None:
    assert set(get_args(ToolParser)) == set(FAMILIES)


def test_calls_and_results_are_given_in_the_form_templates_expect() -> None:
    messages = [ChatMessage("assistant", tool_calls=(CALL,)), ChatMessage("tool", "42", tool_call_id="c1")]
    assert template_messages(messages, ToolFormat(HERMES)) == [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"a": "ü"}}}],
        },
        {"role": "tool", "content": "42", "name": "f", "tool_call_id": "c1"},
    ]


def test_turns_without_calls_have_no_tool_calls_field() -> None:
    assert template_messages([ChatMessage("assistant", "x")], None) == [{"role": "assistant", "content": "x"}]


def test_result_without_id_belongs_to_the_first_open_call_of_its_name() -> None:
    f, g = (ToolCall(name=name, arguments="{}") for name in "fg")
    messages = [
        ChatMessage("assistant", tool_calls=(f, g, f)),
        ChatMessage("tool", "1", name="g"),
        ChatMessage("tool", "2"),
        ChatMessage("tool", "3", name="f"),
        ChatMessage("tool", "4", name="h"),
    ]
    message, *results = template_messages(messages, ToolFormat(HERMES))
    first, second, third = (call["id"] for call in message["tool_calls"])
    assert len({first, second, third}) == 3
    assert [(turn["name"], turn.get("tool_call_id")) for turn in results] == [
        ("g", second), ("f", first), ("f", third), ("h", None)
    ]  # fmt: skip


def test_short_ids_match_between_calls_and_results() -> None:
    call = ToolCall(id="call_0123456789abcdef", name="f", arguments="{}")
    messages = [ChatMessage("assistant", tool_calls=(call,)), ChatMessage("tool", "x", tool_call_id=call.id)]
    message, result = template_messages(messages, ToolFormat(MISTRAL))
    shown = message["tool_calls"][0]["id"]
    assert (len(shown), shown.isalnum()) == (9, True)
    assert result["tool_call_id"] == shown
    assert template_messages(messages, ToolFormat(HERMES))[0]["tool_calls"][0]["id"] == call.id


def test_numbered_ids_are_shown_for_all_calls() -> None:
    f, g = (ToolCall(id=f"call_{name}", name=name, arguments="{}") for name in "fg")
    messages = [
        ChatMessage("assistant", tool_calls=(f, g)),
        ChatMessage("tool", "2", tool_call_id="call_g"),
        ChatMessage("tool", "1"),
        ChatMessage("assistant", tool_calls=(f,)),
        ChatMessage("tool", "3", tool_call_id="call_f"),
        ChatMessage("tool", "4", tool_call_id="call_h"),
    ]
    turns = template_messages(messages, ToolFormat(KIMI_K2))
    assert [call["id"] for turn in turns for call in turn.get("tool_calls", ())] == [
        "functions.f:0", "functions.g:1", "functions.f:2"
    ]  # fmt: skip
    shown = [turn.get("tool_call_id") for turn in turns if turn["role"] == "tool"]
    assert shown == ["functions.g:1", "functions.f:0", "functions.f:2", "call_h"]


def test_whole_tool_loop_renders_in_every_family(test_data: Path) -> None:
    tool = Tool(name="f", parameters={"type": "object", "properties": {"a": {"type": "string"}}})
    messages = [
        ChatMessage("user", "Q"),
        ChatMessage("assistant", tool_calls=(ToolCall(id="call_x", name="f", arguments='{"a": "b"}'),)),
        ChatMessage("tool", "R", tool_call_id="call_x"),
    ]
    for name, form in (
        ("Qwen-Qwen2.5-7B-Instruct", ToolFormat(HERMES)),
        ("mistralai-Mistral-Nemo-Instruct-2407", ToolFormat(MISTRAL)),
        ("meta-llama-Llama-3.1-8B-Instruct", ToolFormat(LLAMA3_JSON)),
    ):
        template = ChatTemplate(
            (test_data / "templates" / f"{name}.jinja").read_text(), {"bos_token": "", "eos_token": ""}
        )
        text = template.render(template_messages(messages, form), tools=template_tools([tool]))
        assert '{"a": "b"}' in text
        assert "R" in text.split('{"a": "b"}')[1]


def test_tool_without_parameters_gets_an_empty_object_schema() -> None:
    assert template_tools([Tool(name="now")]) == [
        {
            "type": "function",
            "function": {"name": "now", "description": "", "parameters": {"type": "object", "properties": {}}},
        }
    ]
