"""Chat bodies with remembered options are parsed like bodies that are parsed for the first time."""

from __future__ import annotations

from typing import Any

import pytest

from catalog.errors import SchemaViolation
from engine.protocol.fields import BadInput
from gateway.inference.chat_completions import MAX_REMEMBERED, ChatOptions, ChatReader
from tests.gateway.process import cards

CARD = next(card for card in cards() if card.name == "@cf/test/chatty")
TURN = {"role": "user", "content": "hello"}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"max_tokens": 5, "stream": True, "temperature": 0},
    {"max_tokens": 5, "stream": False, "temperature": 0.0, "seed": 7, "model": CARD.name},
    {"n": 2, "logprobs": True, "top_logprobs": 3, "top_p": 0.5},
    {"n": 1, "stop": None, "tools": None, "max_tokens": "7", "stream": "true"},
    {"stop": ["x"], "user": "somebody"},
    {"stream": True, "stream_options": {"include_usage": True}},
    {"reasoning_effort": "low", "response_format": {"type": "text"}},
]
BAD_MESSAGES: list[Any] = [
    None,
    [],
    "hello",
    [{"role": "nobody", "content": "x"}],
    [{"role": "user"}],
    [{"role": "user", "content": [{"type": "image_url"}]}],
]


def _refusal(reader: ChatReader, body: dict[str, Any]) -> tuple[type[Exception], str]:
    with pytest.raises((SchemaViolation, BadInput)) as raised:
        reader.read(body)
    return raised.type, str(raised.value)


@pytest.mark.parametrize("options", OPTIONS)
def test_remembered_options_give_the_same_task_with_new_messages(options: dict[str, Any]) -> None:
    reader = ChatReader(CARD, "openai_chat")
    reader.read({"messages": [{"role": "system", "content": "other"}], **options})
    body = {"messages": [TURN, {"role": "assistant", "content": None}, TURN], **options}
    assert reader.read(body)[0] == ChatReader(CARD, "openai_chat").read(body)[0]
    again, fresh = reader.read(body)[1], ChatReader(CARD, "openai_chat").read(body)[1]
    for field in ("accepted", "is_stream", "is_legacy", "has_usage_chunk", "lora"):
        assert getattr(again, field) == getattr(fresh, field)


@pytest.mark.parametrize("messages", BAD_MESSAGES)
def test_bad_messages_give_the_same_error_with_remembered_options(messages: Any) -> None:
    known = ChatReader(CARD, "openai_chat")
    known.read({"messages": [TURN], "max_tokens": 5})
    body = {"messages": messages, "max_tokens": 5}
    assert _refusal(known, body) == _refusal(ChatReader(CARD, "openai_chat"), body)


def test_equal_values_of_different_types_have_different_keys() -> None:
    reader = ChatReader(CARD, "openai_chat")
    assert reader.read({"messages": [TURN], "stream": True, "max_tokens": 1})[1].is_stream
    _refusal(reader, {"messages": [TURN], "stream": 1, "max_tokens": 1})
    _refusal(reader, {"messages": [TURN], "stream": True, "max_tokens": True})
    assert reader.read({"messages": [TURN], "stream": True, "max_tokens": 1.0})[0].sampling.max_tokens == 1


def test_options_with_text_and_rejected_options_are_not_remembered() -> None:
    reader = ChatReader(CARD, "openai_chat")
    for options in ({"user": "somebody"}, {"stop": ["secret"]}, {"response_format": {"type": "text"}}):
        first, second = (reader.read({"messages": [TURN], **options})[1] for _ in range(2))
        assert first is not second
    for _ in range(2):
        _refusal(reader, {"messages": [TURN], "max_tokens": 0})


def test_remembered_options_have_no_messages() -> None:
    reader = ChatReader(CARD, "openai_chat")
    first, second, third = (reader.read({"messages": [TURN], "max_tokens": 1})[1] for _ in range(3))
    assert first is not second
    assert second is third
    assert second.task.messages is None


def test_number_of_remembered_options_is_limited() -> None:
    reader = ChatReader(CARD, "openai_chat")

    def options(seed: int) -> ChatOptions:
        return reader.read({"messages": [TURN], "seed": seed})[1]

    options(0)
    remembered = options(0)
    assert options(0) is remembered
    for seed in range(1, MAX_REMEMBERED + 5):
        options(seed)
    assert options(0) is not remembered
