"""`/models/{model}`: everything that the platform knows about one model, for people with a platform role."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any, Literal

from msgspec import Struct
from starlette.responses import Response

from catalog import deprecations, finetunes
from catalog.card import BASE_MODEL, ModelCard, Prices, decode_card
from catalog.deprecations import SUCCESSOR
from catalog.errors import CardError
from catalog.listed import ListedModel
from catalog.pricing import usd_per_million
from catalog.rows import read_versions
from catalog.search import search_row
from engine.protocol.status import ReplicaState
from gateway.management.catalog_changes import ModelDeprecation, render_deprecation
from gateway.management.endpoint import ManagementRequest, respond
from gateway.model_names import find_shown
from gateway.openapi.operation import describe
from gateway.services import Services


class ModelProperty(Struct, frozen=True):
    """A property of the model search: a price list, or a text."""

    property_id: str
    value: str | list[dict[str, Any]]


class ModelTask(Struct, frozen=True):
    """A task."""

    id: str
    name: str
    description: str


class ModelRow(Struct, frozen=True):
    """A model as in the model search."""

    id: str
    source: int
    name: str
    description: str
    task: ModelTask
    created_at: str
    tags: list[str]
    properties: list[ModelProperty]


class ModelPrice(Struct, frozen=True):
    """A price per million tokens."""

    unit: Literal["input", "cached_input", "output"]
    neurons_per_million: float
    usd_per_million: float


class ModelVersion(Struct, frozen=True):
    """A published version. Versions that were published before this list existed are missing."""

    revision: str
    published_at: datetime | None
    is_current: bool
    num_files: int
    size_bytes: int


class ModelReplica(Struct, frozen=True):
    """A replica on a node."""

    node_id: str
    pop: str
    revision: str
    is_current: bool
    state: ReplicaState
    num_running: int
    num_waiting: int


class ModelVariant(Struct, frozen=True):
    """A quantized variant of the model."""

    name: str
    revision: str
    format: str | None
    size_bytes: int


class ModelPage(Struct, frozen=True, kw_only=True):
    """A model. `state` is `listed` if the model's weights are not installed. `schema_url` is relative to the account's
    URL."""

    name: str
    state: Literal["available", "listed", "retired"]
    card: ModelRow
    capabilities: list[str]
    context_window: int | None
    license: str
    schema_url: str
    prices: list[ModelPrice]
    batch_discount: float
    versions: list[ModelVersion]
    replicas: list[ModelReplica]
    variants: list[ModelVariant]
    base_model: str | None
    num_adapters: int
    aliases: list[str]
    deprecates_on: date | None
    successor: str | None
    deprecation: ModelDeprecation | None


@describe(result=ModelPage)
async def get(services: Services, request: ManagementRequest) -> Response:
    """Get a model's card, prices, versions, replicas, variants, aliases and deprecation."""
    model = await find_shown(services.registry, request.path_params["model"])
    card = model if isinstance(model, ModelCard) else None
    async with services.database.connection() as connection:
        rows = await read_versions(connection, model.name)
        found = (await deprecations.read_deprecations(connection)).get(model.name)
    prices = model.neurons_per_million if isinstance(model, ListedModel) else model.prices
    properties = model.properties
    page: dict[str, Any] = {
        "name": model.name,
        "state": "retired" if services.registry.is_retired(model) else "available" if card else "listed",
        "card": search_row(model),
        "capabilities": sorted(model.capabilities),
        "context_window": model.context_window,
        "license": card.license if card else "",
        "schema_url": f"/ai/models/schema?model={model.name}",
        "prices": _prices(prices),
        "batch_discount": float(prices.batch_discount),
        "versions": _versions(card, rows),
        "replicas": _replicas(services, model.name, card),
        "variants": _variants(services, model.name),
        "base_model": card.properties.get(BASE_MODEL) if card else None,
        "num_adapters": await finetunes.count_of_model(services.database, model.name),
        "aliases": services.registry.aliases_of(model.name),
        "deprecates_on": model.planned_deprecation_date,
        "successor": model.successor if isinstance(model, ListedModel) else properties.get(SUCCESSOR),
        "deprecation": None if found is None else render_deprecation(found),
    }
    return respond(page)


def _prices(prices: Prices) -> list[ModelPrice]:
    given = {"input": prices.input, "cached_input": prices.cached_input, "output": prices.output}
    return [
        ModelPrice(unit, float(price), usd_per_million(price))  # type: ignore[arg-type]
        for unit, price in given.items()
        if price is not None
    ]


def _versions(card: ModelCard | None, rows: list[tuple[str, datetime]]) -> list[ModelVersion]:
    """Return the versions, newest first. A built-in model has one, which is in no row."""
    found: list[tuple[ModelCard, datetime | None]] = []
    for text, published_at in rows:
        try:
            found.append((decode_card(text), published_at))
        except CardError:
            continue  # written by a newer release
    if card is not None and card.revision not in {each.revision for each, _ in found}:
        found.insert(0, (card, None))
    return [
        ModelVersion(
            each.revision,
            published_at,
            card is not None and each.revision == card.revision,
            len(each.files),
            sum(file.size_bytes for file in each.files),
        )
        for each, published_at in found
    ]


def _replicas(services: Services, name: str, card: ModelCard | None) -> list[ModelReplica]:
    return [
        ModelReplica(
            status.node_id,
            status.pop,
            replica.revision,
            card is not None and replica.revision == card.revision,
            replica.state,
            replica.num_running,
            replica.num_waiting,
        )
        for status, replica in services.nodes.replicas_of(name)
    ]


def _variants(services: Services, name: str) -> list[ModelVariant]:
    return [
        ModelVariant(
            card.name, card.revision, card.properties.get("format"), sum(file.size_bytes for file in card.files)
        )
        for card in services.registry.all()
        if card.properties.get(BASE_MODEL) == name
    ]
