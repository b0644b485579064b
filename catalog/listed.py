"""Listed models: public model ids that are known here whether or not their weights are. What is known of each is facts
and a sentence; who has its weights publishes them under its name, and the published card then stands for it.

The list is `catalog/listed.jsonl`, one model a line, and is read once. `python -m scripts.write_listed_models` writes
its facts anew from a file of facts; descriptions, successors and models that file does not name stay as they are here.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from functools import lru_cache
from importlib import resources
from typing import Any

import msgspec
from msgspec import Struct

from catalog.card import TASKS, Prices, author_of, id_of
from catalog.pricing import USD_PER_1000_NEURONS

# What the catalog's rows say of models whose own date is not known: the day on which they were listed here.
_LISTED_ON = date(2026, 11, 22)


class ListedPrice(Struct, frozen=True, array_like=True):
    """What one unit of work costs elsewhere: dollars, and neurons where they are known."""

    unit: str
    usd: float
    neurons: float | None


class ListedModel(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One public model. `hub` is the hub's repository with its weights, `schema` what it takes and gives,
    `properties` further values of the search route. `retired_on` is in the past for models that are over."""

    name: str
    task: str
    description: str
    schema: str
    created_on: date | None = None
    native_shape: str = "legacy"
    context_window: int | None = None
    default_max_tokens: int = 256
    max_input_tokens: int | None = None
    output_dimensions: int | None = None
    capabilities: tuple[str, ...] = ()
    prices: tuple[ListedPrice, ...] = ()
    properties: dict[str, Any] = {}
    hub: str | None = None
    is_beta: bool = False
    is_hidden: bool = False
    retired_on: date | None = None
    successor: str | None = None

    pooling = None  # of embedding models: their own default is not known here
    tags: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """As of the card that would take its place."""
        return id_of("model", self.name)

    @property
    def author(self) -> str:
        return author_of(self.name)

    @property
    def task_slug(self) -> str:
        return TASKS[self.task].slug

    @property
    def created_at(self) -> datetime:
        day = self.created_on or _LISTED_ON
        return datetime(day.year, day.month, day.day, tzinfo=UTC)

    @property
    def planned_deprecation_date(self) -> date | None:
        return self.retired_on

    @property
    def max_choices(self) -> int:
        return 1

    def is_retired(self, today: date) -> bool:
        return self.retired_on is not None and self.retired_on <= today

    @property
    def neurons_per_million(self) -> Prices:
        """What a card of this model charges: its prices by tokens, in listed neurons or else as its dollars buy them;
        nothing where none is known."""
        found = {price.unit: _neurons(price) for price in self.prices}
        return Prices(
            input=found.get("per M input tokens", Decimal(0)),
            output=found.get("per M output tokens", Decimal(0)),
            cached_input=found.get("per M cached input tokens"),
        )


def _neurons(price: ListedPrice) -> Decimal:
    if price.neurons is not None:
        return Decimal(str(price.neurons))
    return round(Decimal(str(price.usd)) * 1000 / USD_PER_1000_NEURONS, 6)


@lru_cache(maxsize=1)
def listed_models() -> dict[str, ListedModel]:
    """Name -> model."""
    lines = resources.files("catalog").joinpath("listed.jsonl").read_bytes()
    return {model.name: model for model in msgspec.json.Decoder(ListedModel).decode_lines(lines)}
