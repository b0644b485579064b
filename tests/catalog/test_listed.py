"""catalog/listed.py: descriptions, schemas, prices and successors of the listed public models."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from importlib import resources
from typing import Any

import jsonschema_rs
import pytest

from catalog.authors import author_rows
from catalog.builtin import builtin_models
from catalog.card import CAPABILITIES, TASKS, parse_model_id
from catalog.errors import PublishError
from catalog.listed import listed_models
from catalog.model_folder import facts_as_listed
from catalog.pricing import usd_per_million
from catalog.registry import Registry
from catalog.schemas import schema_document
from catalog.search import SearchQuery, search_row
from tests.catalog.cards import chat_card, chat_facts, embedder_facts

TODAY = date(2026, 11, 22)


def test_every_listed_model_has_a_known_task_a_schema_and_a_description() -> None:
    models = listed_models()
    assert (
        len(models) == len(resources.files("catalog").joinpath("listed.jsonl").read_text("utf-8").splitlines()) >= 112
    )
    assert not models.keys() & builtin_models().keys()
    descriptions = [model.description for model in models.values() if not model.is_retired(TODAY)]
    assert len(set(descriptions)) == len(descriptions)
    for name, model in models.items():
        assert parse_model_id(name) == name
        assert model.description.endswith(".")
        assert set(model.capabilities) <= CAPABILITIES
        document = schema_document(model)
        for half in ("input", "output"):
            jsonschema_rs.Draft202012Validator(document[half])
            assert isinstance(document[half]["type"], str)
            assert isinstance(document[half]["description"], str)
            assert isinstance(document[half]["additionalProperties"], bool)
        row = search_row(model)
        assert row["task"]["name"] in TASKS
        assert all(isinstance(item["value"], str | list | dict) for item in row["properties"])
        assert all(set(item) == {"unit", "price", "currency"} for item in _price(row))


def _price(row: dict[str, Any]) -> list[dict[str, Any]]:
    return next((item["value"] for item in row["properties"] if item["property_id"] == "price"), [])


def test_retired_models_have_a_successor_that_is_not_retired() -> None:
    models = listed_models()
    retired = [model for model in models.values() if model.is_retired(TODAY)]
    assert len(retired) >= 37
    for model in retired:
        assert model.successor is not None
        assert not models[model.successor].is_retired(TODAY), model.name
    assert all(model.successor is None for model in models.values() if model.retired_on is None)


@pytest.mark.parametrize(
    "words", ["Llama 2 of 7", "Llama 2 of 13", "Code Llama", "Mistral 7B", "Llama 4", "Stable Diffusion XL", "Whisper"]
)
def test_popular_models_are_listed(words: str) -> None:
    assert any(words in model.description for model in listed_models().values() if not model.is_retired(TODAY))


def test_price_in_dollars_only_is_converted_to_neurons() -> None:
    clef = listed_models()["@cf/cloudflare/clef"]
    assert [(price.usd, price.neurons) for price in clef.prices] == [(0.24, None)]
    assert clef.neurons_per_million.input == Decimal("21818.181818")
    assert usd_per_million(clef.neurons_per_million.input) == 0.24


def test_published_card_replaces_the_listed_model() -> None:
    name = "@cf/meta/llama-3.2-1b-instruct"
    card = chat_card(name, description="Pulled.")
    registry = Registry(None, builtin_cards=[card], listed=listed_models())
    assert [row["description"] for row in registry.search(SearchQuery(search="llama-3.2-1b")).rows] == ["Pulled."]
    assert registry.find_listed(name) is None
    assert registry.find("@cf/meta/llama-3.2-3b-instruct") is None
    assert registry.find_listed("@cf/meta/llama-3.2-3b-instruct") is not None
    assert [model.name for model in registry.all()] == [name]
    hidden = {model.name for model in listed_models().values() if model.is_hidden}
    assert hidden
    assert not hidden & {row["name"] for row in registry.search(SearchQuery(include_deprecated=True)).rows}


def test_pulled_model_gets_the_facts_of_the_listed_model() -> None:
    listed = listed_models()["@cf/qwen/qwen3-30b-a3b-fp8"]
    facts = facts_as_listed(chat_facts(listed.name), listed)
    assert (facts.description, facts.prices.input) == (listed.description, Decimal(4625))
    assert (facts.native_shape, facts.schema) == ("chat_completion", "openai_chat")
    with pytest.raises(PublishError, match="a model for Text Generation"):
        facts_as_listed(embedder_facts(listed.name), listed)


def test_authors_are_found_by_slug_and_by_name() -> None:
    rows = author_rows(["meta", "meta", "zai-org"], "")
    assert [(row["slug"], row["name"], row["description"]) for row in rows] == [
        ("meta", "Meta", "2 models in this catalog."),
        ("zai-org", "Z.ai", "1 model in this catalog."),
    ]
    assert [row["slug"] for row in author_rows(["meta", "zai-org"], "Z.AI")] == ["zai-org"]
