"""Laws of the tokenizer and the chat template."""

import json
from typing import Any

import jinja2
import pytest
from tokenizers import Tokenizer

from spark.generator.dialogue import call
from spark.tokenizer import CHAT_TEMPLATE, END_ID, build_config, render, train_tokenizer

TOOL = {
    "type": "function",
    "function": {
        "name": "get_time",
        "description": "Zeit für Köln",
        "parameters": {"type": "object", "properties": {}},
    },
}
CONVERSATIONS: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]] | None]] = {
    "one question": ([{"role": "user", "content": "Hello"}], None),
    "system and turns": (
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "<b>'Hi' & \"bye\"</b>"},
            {"role": "assistant", "content": "Hello!"},
            {"role": "user", "content": "2+2"},
        ],
        None,
    ),
    "tools without system": ([{"role": "user", "content": "What time is it in Paris?"}], [TOOL]),
    "tools with system, call and result": (
        [
            {"role": "system", "content": "Use the tools."},
            {"role": "user", "content": "What time is it in Paris?"},
            call("get_time", {"city": "Paris", "zone": "Île"}),
            {"role": "tool", "content": '{"time": "12:00"}'},
        ],
        [TOOL, TOOL],
    ),
    "two calls after a text": (
        [
            {"role": "user", "content": "Both"},
            {
                "role": "assistant",
                "content": "I will look.",
                "tool_calls": [*call("a", {"x": 1})["tool_calls"], *call("b", {})["tool_calls"]],
            },
        ],
        None,
    ),
}


def render_with_jinja(
    messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, is_prompt: bool = True
) -> str:
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.from_string(CHAT_TEMPLATE).render(
        messages=messages, tools=tools, add_generation_prompt=is_prompt
    )


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_the_template_and_the_trainer_write_the_same_text(name: str) -> None:
    """The training text of a conversation is the output of the chat template."""
    messages, tools = CONVERSATIONS[name]
    assert render_with_jinja(messages, tools) == "".join(text for text, _ in render(messages, tools, is_prompt=True))


def test_arguments_may_be_a_json_string_and_content_may_be_parts() -> None:
    """The template accepts both forms of the OpenAI API."""
    given = call("a", {"x": 1})
    given["tool_calls"][0]["function"]["arguments"] = '{"x": 1}'
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    assert render_with_jinja([given], None) == render_with_jinja([call("a", {"x": 1})], None)
    assert render_with_jinja([{"role": "user", "content": parts}], None) == render_with_jinja(
        [{"role": "user", "content": "Hello"}], None
    )


def test_a_null_content_is_empty() -> None:
    """An assistant message that only calls tools may have no content."""
    given = {**call("a", {}), "content": None}
    assert render_with_jinja([given], None) == render_with_jinja([call("a", {})], None)


@pytest.mark.parametrize(
    "text",
    ["Hello", " two  blanks\n\n\ttab", "naïve Öl 漢字 🙂‍↔️ \u200b", "1234.50", "\x00\x7f", "<tool_call>{}</tool_call>"],
)
def test_any_text_survives_a_round_trip(tokenizer: Tokenizer, text: str) -> None:
    """Encoding loses nothing."""
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids, skip_special_tokens=True) == text


def test_digits_stand_alone(tokenizer: Tokenizer) -> None:
    """A number is a sequence of digits, so that sums can be worked out."""
    assert len(tokenizer.encode("1998").ids) == 4


def test_the_end_of_a_turn_is_one_token_and_no_start_is_added(tokenizer: Tokenizer) -> None:
    """<|im_end|> ends a turn; text gets no token in front."""
    assert tokenizer.encode("<|im_end|>").ids == [END_ID]
    assert tokenizer.get_vocab_size() == 4096
    assert build_config()["eos_token"] == "<|im_end|>"


def test_a_tool_call_stays_visible_when_special_tokens_are_left_out(tokenizer: Tokenizer) -> None:
    """The engine reads calls from decoded text, so their marks are tokens but not special ones."""
    ids = tokenizer.encode("<tool_call>\n{}\n</tool_call><|im_end|>").ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == "<tool_call>\n{}\n</tool_call>"


def test_the_committed_tokenizer_comes_from_the_generator(tokenizer: Tokenizer) -> None:
    """Training one again with seed 0 gives the same twice, and nearly the committed one: its mix was changed since."""
    again = train_tokenizer(0)
    assert train_tokenizer(0).to_str() == again.to_str()
    ours, theirs = again.get_vocab(), tokenizer.get_vocab()
    assert len(ours) == len(theirs)
    assert len(set(ours) & set(theirs)) >= 0.9 * len(theirs)
