"""The search route: filter cards, cut pages, and render rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from catalog.card import TASKS, ModelCard
from catalog.listed import ListedModel
from catalog.pricing import usd_per_million

MAX_PER_PAGE = 1000
AnyModel = ModelCard | ListedModel

_RETIRED_SHOWN_FOR = timedelta(days=92)  # three months


@dataclass(frozen=True)
class SearchQuery:
    """The search route's parameters. `task` is a display name, `source` 1 for @cf and 2 for @hf. `is_installed` selects
    models whose weights are installed. Pages count from 1."""

    search: str = ""
    task: str = ""
    author: str = ""
    source: int | None = None
    hide_experimental: bool = False
    include_deprecated: bool = False
    is_installed: bool = False
    page: int = 1
    per_page: int = MAX_PER_PAGE


@dataclass(frozen=True)
class SearchPage:
    """The models of one page, none past the end, and the number of all matching models."""

    models: list[AnyModel]
    total_count: int
    page: int
    per_page: int

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The models as rows of the search route."""
        return [search_row(model) for model in self.models]


def search_page(cards: Iterable[AnyModel], query: SearchQuery, today: date) -> SearchPage:
    """Return one page of the matching cards, in their order. Page numbers and sizes out of range are clamped."""
    matching = [card for card in cards if _matches(card, query, today)]
    page, per_page = max(1, query.page), min(max(1, query.per_page), MAX_PER_PAGE)
    start = (page - 1) * per_page
    return SearchPage(matching[start : start + per_page], len(matching), page, per_page)


def search_row(card: AnyModel) -> dict[str, Any]:
    """Return a row as defined by the wire contract: the model id is in `name`."""
    task = TASKS[card.task]
    milliseconds = card.created_at.microsecond // 1000
    return {
        "id": card.id,
        "source": _source(card),
        "name": card.name,
        "description": card.description,
        "task": {"id": task.id, "name": task.name, "description": task.description},
        "created_at": f"{card.created_at:%Y-%m-%d %H:%M:%S}.{milliseconds:03d}",
        "tags": list(card.tags),
        "properties": _properties(card),
    }


def _source(card: AnyModel) -> int:
    return 1 if card.name.startswith("@cf/") else 2


def _matches(card: AnyModel, query: SearchQuery, today: date) -> bool:
    pattern = query.search.lower()
    return (
        (not pattern or pattern in card.name.lower() or pattern in card.description.lower())
        and query.task in ("", card.task)
        and query.author.lower() in ("", card.author.lower())
        and query.source in (None, _source(card))
        and not (query.hide_experimental and card.is_beta)
        and not (query.is_installed and isinstance(card, ListedModel))
        and _is_shown(card, query.include_deprecated, today)
    )


def _is_shown(card: AnyModel, include_deprecated: bool, today: date) -> bool:
    if isinstance(card, ListedModel) and card.is_hidden:
        return False
    if not card.is_retired(today):
        return True
    assert card.planned_deprecation_date is not None
    return include_deprecated and today - card.planned_deprecation_date <= _RETIRED_SHOWN_FOR


def _properties(card: AnyModel) -> list[dict[str, Any]]:
    values: dict[str, Any] = {}
    price = _listed_price(card) if isinstance(card, ListedModel) else _price(card)
    if price or not isinstance(card, ListedModel):
        values["price"] = price
    if card.context_window is not None and (card.task == "Text Generation" or isinstance(card, ListedModel)):
        values["context_window"] = str(card.context_window)
    if card.max_input_tokens is not None:
        values["max_input_tokens"] = str(card.max_input_tokens)
    if card.output_dimensions is not None:
        values["output_dimensions"] = str(card.output_dimensions)
    for capability in ("function_calling", "reasoning", "vision", "lora"):
        if capability in card.capabilities:
            values[capability] = "true"
    if card.is_beta:
        values["beta"] = "true"
    if card.planned_deprecation_date is not None:
        values["planned_deprecation_date"] = card.planned_deprecation_date.isoformat()
    values.update(card.properties)
    return [{"property_id": name, "value": value} for name, value in values.items()]


def _listed_price(model: ListedModel) -> list[dict[str, Any]]:
    return [{"unit": price.unit, "price": price.usd, "currency": "USD"} for price in model.prices]


def _price(card: ModelCard) -> list[dict[str, Any]]:
    listed = [("per M input tokens", card.prices.input)]
    if card.prices.cached_input is not None:
        listed.append(("per M cached input tokens", card.prices.cached_input))
    if card.task == "Text Generation":
        listed.append(("per M output tokens", card.prices.output))
    return [{"unit": unit, "price": usd_per_million(neurons), "currency": "USD"} for unit, neurons in listed]
