"""catalog/search.py: rows, filters and pages of the search route."""

from __future__ import annotations

import re
import uuid
from datetime import date, timedelta
from typing import Any

import pytest

from catalog.registry import Registry
from catalog.search import SearchQuery, search_page, search_row
from tests.catalog.cards import chat_card, embedder_card

TODAY = date(2026, 11, 20)
CARDS = [
    chat_card("@cf/acme/chat", description="Talks about ROCKS"),
    chat_card("@cf/acme/draft", is_beta=True),
    embedder_card("@cf/other/embed"),
    chat_card("@hf/other/old", planned_deprecation_date=TODAY - timedelta(days=30)),
    chat_card("@hf/other/older", planned_deprecation_date=TODAY - timedelta(days=100)),
    chat_card("@hf/other/soon", planned_deprecation_date=TODAY + timedelta(days=1)),
]


def names(**query: Any) -> list[str]:
    return [row["name"].split("/")[2] for row in search_page(CARDS, SearchQuery(**query), TODAY).rows]


def test_row_has_the_fields_of_the_contract() -> None:
    row = search_row(chat_card(prices={"input": 2457, "output": 18252}, capabilities=["function_calling"]))
    assert list(row) == ["id", "source", "name", "description", "task", "created_at", "tags", "properties"]
    assert str(uuid.UUID(row["id"])) == row["id"]
    assert (row["source"], row["name"], row["tags"]) == (1, "@cf/acme/chat", [])
    assert row["task"]["id"] == "c329a1f9-323d-4e91-b2aa-582dd4188d34"
    assert row["task"]["name"] == "Text Generation"
    assert row["created_at"] == "2026-11-20 10:27:29.131"
    properties = {item["property_id"]: item["value"] for item in row["properties"]}
    assert properties.pop("price") == [
        {"unit": "per M input tokens", "price": 0.027027, "currency": "USD"},
        {"unit": "per M output tokens", "price": 0.200772, "currency": "USD"},
    ]
    assert properties == {"context_window": "2048", "function_calling": "true"}


def test_row_of_an_embedding_model_has_its_dimensions_as_text() -> None:
    properties = {item["property_id"]: item["value"] for item in search_row(CARDS[2])["properties"]}
    assert properties.pop("price")[0]["unit"] == "per M input tokens"
    assert properties == {"max_input_tokens": "256", "output_dimensions": "384"}


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({}, ["chat", "draft", "embed", "soon"]),
        ({"search": "rocks"}, ["chat"]),
        ({"search": "EMBED"}, ["embed"]),
        ({"search": "%"}, []),
        ({"task": "Text Embeddings"}, ["embed"]),
        ({"task": "text-embeddings"}, []),
        ({"author": "acme"}, ["chat", "draft"]),
        ({"source": 2}, ["soon"]),
        ({"source": 1, "hide_experimental": True}, ["chat", "embed"]),
        ({"include_deprecated": True}, ["chat", "draft", "embed", "old", "soon"]),
        ({"page": 2, "per_page": 3}, ["soon"]),
        ({"page": 3, "per_page": 3}, []),
        ({"page": 0, "per_page": 0}, ["chat"]),
    ],
)
def test_filters_and_pages(query: dict[str, Any], found: list[str]) -> None:
    assert names(**query) == found


def test_search_can_leave_out_models_without_weights() -> None:
    registry = Registry(None)
    installed, known = (registry.search(SearchQuery(is_installed=only)).models for only in (True, False))
    assert {"@cf/hearth/spark", "@cf/hearth/minilm"} <= {model.name for model in installed}
    assert {model.name for model in installed} == {card.name for card in registry.all()}
    assert len(known) > len(installed)


def test_page_has_the_total_count() -> None:
    page = search_page(CARDS, SearchQuery(page=9, per_page=2), TODAY)
    assert (page.rows, page.total_count, page.page, page.per_page) == ([], 4, 9, 2)


def test_registry_searches_its_models() -> None:
    registry = Registry(None, builtin_cards=CARDS[:3])
    assert registry.search(SearchQuery(author="other")).total_count == 1
    assert all(re.fullmatch(r"@(cf|hf)/.*", row["name"]) for row in registry.search(SearchQuery()).rows)
