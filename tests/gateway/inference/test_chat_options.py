"""A body whose options were read before comes to the same as one that is read for the first time."""

from __future__ import annotations

from typing import Any

import pytest

from catalog.errors import SchemaViolation
from engine.protocol.fields import BadInput
from gateway.inference.chat_completions import MAX_REMEMBERED, ChatReader
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
def test_a_second_body_with_the_same_options_has_its_own_messages_and_the_same_task(options: dict[str, Any]) -> None:
    reader = ChatReader(CARD, "openai_chat")
    reader.read({"messages": [{"role": "system", "content": "other"}], **options})
    body = {"messages": [TURN, {"role": "assistant", "content": None}, TURN], **options}
    assert reader.read(body)[0] == ChatReader(CARD, "openai_chat").read(body)[0]
    again, fresh = reader.read(body)[1], ChatReader(CARD, "openai_chat").read(body)[1]
    for field in ("accepted", "is_stream", "is_legacy", "has_usage_chunk", "lora"):
        assert getattr(again, field) == getattr(fresh, field)


@pytest.mark.parametrize("messages", BAD_MESSAGES)
def test_messages_are_refused_in_the_same_words_whether_or_not_the_options_are_known(messages: Any) -> None:
    known = ChatReader(CARD, "openai_chat")
    known.read({"messages": [TURN], "max_tokens": 5})
    body = {"messages": messages, "max_tokens": 5}
    assert _refusal(known, body) == _refusal(ChatReader(CARD, "openai_chat"), body)


def test_values_that_are_equal_and_not_the_same_are_told_apart() -> None:
    reader = ChatReader(CARD, "openai_chat")
    assert reader.read({"messages": [TURN], "stream": True, "max_tokens": 1})[1].is_stream
    _refusal(reader, {"messages": [TURN], "stream": 1, "max_tokens": 1})
    _refusal(reader, {"messages": [TURN], "stream": True, "max_tokens": True})
    assert reader.read({"messages": [TURN], "stream": True, "max_tokens": 1.0})[0].sampling.max_tokens == 1


def test_nothing_that_a_person_wrote_and_nothing_refused_is_remembered() -> None:
    reader = ChatReader(CARD, "openai_chat")
    for options in ({"user": "somebody"}, {"stop": ["secret"]}, {"response_format": {"type": "text"}}):
        reader.read({"messages": [TURN], **options})
    _refusal(reader, {"messages": [TURN], "max_tokens": 0})
    assert not reader._remembered
    reader.read({"messages": [TURN], "max_tokens": 1})
    assert [known.task.messages for known in reader._remembered.values()] == [None]


def test_what_is_remembered_is_bounded() -> None:
    reader = ChatReader(CARD, "openai_chat")
    for seed in range(MAX_REMEMBERED + 5):
        reader.read({"messages": [TURN], "seed": seed})
    assert len(reader._remembered) <= MAX_REMEMBERED
