"""catalog/card.py: model ids, cards in TOML, and cards in database rows."""

from __future__ import annotations

from datetime import UTC

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.card import ModelCard, decode_card, encode_card, parse_facts, parse_model_id
from catalog.errors import CardError, InvalidModelId
from catalog.manifest import pointer_key
from tests.catalog.cards import chat_card, embedder_card

TOML = """
name = "@cf/acme/chat"
task = "Text Generation"
description = "A chat model"
schema = "text_generation_legacy"
context_window = 2048
created_at = 2026-11-20T00:00:00
[prices]
input = 1.5
output = 3
"""


@pytest.mark.parametrize(
    "text", ["@cf/meta/llama-3.1-8b-instruct", "@hf/thebloke/mistral-7b-v0.1-awq", "@cf/a/b", "@cf/a.b_c/D-1"]
)
def test_model_id_is_parsed_and_the_workers_ai_prefix_removed(text: str) -> None:
    assert parse_model_id(text) == text
    assert parse_model_id("workers-ai/" + text) == text


@pytest.mark.parametrize(
    "text",
    [
        "", "spark", "@cf/spark", "@cf/a/b/c", "@xx/a/b", "cf/a/b", "@cf//b", "@cf/a/", "@cf/../b", "@cf/a/..",
        "@cf/a/b..c", "@cf/.a/b", "@cf/a/b\n", "@cf/a/b\0", "@cf/a/b\r\nx", "@cf/a%2Fb", "@cf/a/b c", "@cf/a/é",
        "https://host/@cf/a/b", "@cf/a/<script>", "@CF/a/b", "workers-ai/workers-ai/@cf/a/b", "@cf/" + "a" * 97 + "/b",
        "@cf/a/" + "b" * 129, "@cf/" + "a" * 96 + "/" + "b" * 128,
    ],
)  # fmt: skip
def test_invalid_model_id_is_rejected_without_repeating_it(text: str) -> None:
    with pytest.raises(InvalidModelId) as refused:
        parse_model_id(text)
    assert not text or text not in str(refused.value)


@given(st.one_of(st.text(max_size=40), st.from_regex(r"@(cf|hf)/[\w.%-]+/[\w.%/-]+", fullmatch=True)))
def test_valid_id_is_short_and_has_one_object_store_key(text: str) -> None:
    try:
        name = parse_model_id(text)
    except InvalidModelId:
        return
    assert name.isascii()
    assert ".." not in name
    assert len(name) <= 224
    assert pointer_key(name).count("/") == 1


def test_card_is_parsed_from_toml_with_times_in_utc() -> None:
    facts = parse_facts(TOML, "x.toml")
    assert facts.default_max_tokens == 256
    assert facts.created_at.tzinfo is UTC
    assert facts.prices.cached_input is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("context_window = 2048", "context_window = '2048'"), "context_window"),
        (("context_window = 2048", "context_window = 0"), "context_window"),
        (("context_window = 2048", "context_window = 128"), "default_max_tokens must not exceed"),
        (("input = 1.5", "input = -1"), "prices must be"),
        (("input = 1.5", "input = nan"), "prices must be"),
        (("[prices]", "surprise = 1\n[prices]"), "surprise"),
        (("[prices]", "capabilities = ['flying']\n[prices]"), "flying"),
        (("[prices]", "tool_parser = 'hermes'\n[prices]"), "tool_parser"),
        (("[prices]", "capabilities = ['function_calling']\ntool_parser = 'other'\n[prices]"), "tool_parser"),
        (("@cf/acme/chat", "acme"), "a model id has the form"),
        (("Text Generation", "Mind Reading"), "task must be one of"),
        (("Text Generation", "Text Embeddings"), "output_dimensions"),
        (("text_generation_legacy", "nothing"), "schema"),
        (('name = "@cf/acme/chat"', ""), "name"),
        (("[prices]", "[prices"), ""),
    ],
)
def test_invalid_card_is_rejected_naming_file_and_field(change: tuple[str, str], message: str) -> None:
    with pytest.raises(CardError) as refused:
        parse_facts(TOML.replace(*change), "x.toml")
    assert str(refused.value).startswith("x.toml: ")
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("card", [chat_card(prices={"input": "1.5", "output": 3}), embedder_card()])
def test_card_round_trips_through_its_row(card: ModelCard) -> None:
    assert decode_card(encode_card(card)) == card


def test_row_that_is_not_a_card_is_rejected() -> None:
    with pytest.raises(CardError):
        decode_card('{"name": "@cf/acme/chat"}')


def test_card_id_depends_only_on_the_name() -> None:
    assert chat_card().id == chat_card(description="other").id
    assert chat_card().id != chat_card("@cf/acme/other").id
