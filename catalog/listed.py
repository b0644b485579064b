"""Listed models: well-known public models that are listed even if their weights are not published here.

An operator who has a model's weights publishes them under the same id; the published card then replaces the listed
model. The list is `catalog/listed.jsonl`, one model per line sorted by name, edited by hand and read once.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from functools import lru_cache
from importlib import resources
from typing import Any

import msgspec
from msgspec import Struct

from catalog.card import TASKS, Prices, author_of, id_of, parse_model_id
from catalog.errors import PullError
from catalog.pricing import USD_PER_1000_NEURONS

# The creation date of models whose own date is unknown: the day on which they were added to the list.
_LISTED_ON = date(2026, 11, 22)


class ListedPrice(Struct, frozen=True, array_like=True):
    """The public price of one unit: US dollars, and neurons if known."""

    unit: str
    usd: float
    neurons: float | None


class ListedModel(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One public model.

    `hub` is the hub repository with its weights, `schema` its input and output schema, `properties` are additional
    values for the search route. `retired_on` may be in the past.
    """

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

    pooling = None  # the default pooling of listed embedding models is unknown
    tags: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """The id of the card that would replace this model."""
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
        """Prices for this model's card: the listed neurons, or the listed dollars converted to neurons."""
        found = {price.unit: _neurons(price) for price in self.prices}
        return Prices(
            input=found.get("per M input tokens", Decimal(0)),
            output=found.get("per M output tokens", Decimal(0)),
            cached_input=found.get("per M cached input tokens"),
            step=found.get("per step", Decimal(0)),
            image_tile=found.get("per 512x512 tile", found.get("per M images", Decimal(0)) / 1_000_000),
            audio_second=round(found.get("per audio minute", Decimal(0)) / 60, 6),
            thousand_characters=found.get("per 1k characters input", Decimal(0)),
        )


def _neurons(price: ListedPrice) -> Decimal:
    if price.neurons is not None:
        return Decimal(str(price.neurons))
    return round(Decimal(str(price.usd)) * 1000 / USD_PER_1000_NEURONS, 6)


@lru_cache(maxsize=1)
def listed_models() -> dict[str, ListedModel]:
    """Return name -> listed model."""
    lines = resources.files("catalog").joinpath("listed.jsonl").read_bytes()
    return {model.name: model for model in msgspec.json.Decoder(ListedModel).decode_lines(lines)}


def repository_of(model_id: str) -> str:
    """Return the hub repository of a listed model. Raises InvalidModelId or PullError."""
    listed = listed_models().get(parse_model_id(model_id))
    if listed is None:
        raise PullError(f"{model_id} is not a listed model: give a hub repository")
    if listed.hub is None:
        raise PullError(f"no repository is known for {model_id}: give one, with --name {model_id}")
    return listed.hub
