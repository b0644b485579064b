"""Foreign engines: OpenAI-compatible servers (vLLM, SGLang, llama.cpp, Ollama) that operators register, one row each.

An engine serves models of the catalog under its own names for them. A model that has no card yet gets one without
files, which only foreign engines can serve. Keys are encrypted by the caller. Knows nothing of HTTP.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, Struct
from sqlalchemy import delete, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from catalog.card import CardFacts, ModelCard, Prices, card_of, decode_card, manifest_of, parse_model_id
from catalog.pricing import neurons_per_million
from catalog.rows import change, delete_card, read_aliases, read_cards, write_card
from catalog.tables import foreign_engines
from storage.database import Database
from storage.errors import Missing
from telemetry.clock import SYSTEM_CLOCK, Clock

EngineKind = Literal["vllm", "sglang", "llama.cpp", "ollama", "hearth", "openai"]
EngineTask = Literal["Text Generation", "Text Embeddings"]
Note = Callable[[AsyncConnection], Awaitable[None]]
"""Appends an audit entry in the transaction that changes an engine."""

MAX_ENGINES = 200
MAX_MODELS = 100  # per engine
MAX_USD = 100_000  # per million tokens
WITHOUT_WEIGHTS = "without_weights"  # property of a card that only foreign engines can serve


class EngineModel(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model of an engine. `name` is the engine's own id of the model. `input_usd` and `output_usd` are what the
    engine charges the operator per million tokens. `context_window` and the fields after it describe a model that the
    catalog does not have."""

    name: Annotated[str, Meta(min_length=1, max_length=256)]
    input_usd: Decimal = Decimal(0)
    output_usd: Decimal = Decimal(0)
    context_window: Annotated[int, Meta(ge=1, le=100_000_000)] | None = None
    output_dimensions: Annotated[int, Meta(ge=1, le=100_000)] | None = None
    task: EngineTask = "Text Generation"

    def __post_init__(self) -> None:
        for price in (self.input_usd, self.output_usd):
            if not (price.is_finite() and 0 <= price <= MAX_USD):
                raise ValueError(f"prices must be between 0 and {MAX_USD} dollars per million tokens")


class EngineSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One engine. `url` is the base URL of its OpenAI routes, such as `http://10.0.0.5:8000/v1`. `models` maps model
    ids of the catalog to the engine's models. `kind` None is detected. `pop` is the PoP for residency rules and
    distances; an engine without one is in no location that residency rules admit. Calls with zero data retention go
    only to an engine with `keeps_no_content`."""

    name: Annotated[str, Meta(pattern="^[a-z0-9][a-z0-9-]{0,47}$")]
    url: Annotated[str, Meta(min_length=8, max_length=512)]
    models: dict[str, EngineModel]
    kind: EngineKind | None = None
    pop: Annotated[str, Meta(pattern="^[A-Za-z0-9._-]{0,63}$")] = ""
    max_calls: Annotated[int, Meta(ge=1, le=100_000)] = 64
    keeps_no_content: bool = False

    def __post_init__(self) -> None:
        check_url(self.url)
        if not 1 <= len(self.models) <= MAX_MODELS:
            raise ValueError(f"models must have 1 to {MAX_MODELS} members")


class StoredEngine(Struct, frozen=True):
    """An engine as stored. `sealed_key` is the encrypted API key, None without one."""

    spec: EngineSpec
    sealed_key: bytes | None
    created_at: datetime


class EngineError(ValueError):
    """An engine cannot be registered; the message names the field."""


def check_url(url: str) -> None:
    """Raise ValueError unless `url` can be the base URL of an engine."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError("url must be a URL such as http://10.0.0.5:8000/v1") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or not url.isascii():
        raise ValueError("url must be a URL such as http://10.0.0.5:8000/v1")
    if parts.username or parts.password or parts.query or parts.fragment or any(map(str.isspace, url)):
        raise ValueError("url must have no user, password, query, fragment or white space; pass the key as `key`")
    try:
        address = ipaddress.ip_address(parts.hostname)
    except ValueError:
        return
    if address.is_link_local or address.is_multicast or address.is_unspecified:
        raise ValueError("url must not have a link-local, multicast or unspecified address")


def origin_of(url: str) -> tuple[str, str]:
    """Return scheme and host with port."""
    parts = urlsplit(url)
    return parts.scheme, parts.netloc.lower()


async def list_engines(database: Database) -> list[StoredEngine]:
    """Return all engines, sorted by name. Raises StoreUnavailable."""
    async with database.connection() as connection:
        return await read_engines(connection)


async def read_engines(connection: AsyncConnection) -> list[StoredEngine]:
    """Return all engines, sorted by name."""
    rows = (await connection.execute(select(foreign_engines).order_by(foreign_engines.c.name))).mappings()
    return [
        StoredEngine(msgspec.json.decode(row["spec"], type=EngineSpec), row["sealed_key"], row["created_at"])
        for row in rows
    ]


async def register(
    database: Database,
    spec: EngineSpec,
    sealed_key: bytes | None,
    *,
    note: Note | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> StoredEngine:
    """Create or replace an engine, and create cards for models that the catalog does not have.

    Without `sealed_key`, the engine keeps its key if scheme, host and port of the URL are unchanged: a key is never
    sent to another server than it was given for. Raises EngineError, InvalidModelId, StoreUnavailable.
    """
    async with change(database) as connection:
        before = {engine.spec.name: engine for engine in await read_engines(connection)}
        current = before.get(spec.name)
        if current is None and len(before) >= MAX_ENGINES:
            raise EngineError(f"there are {MAX_ENGINES} engines already, the maximum")
        if sealed_key is None and current is not None and origin_of(current.spec.url) == origin_of(spec.url):
            sealed_key = current.sealed_key
        await _make_cards(connection, spec, clock.now())
        made = StoredEngine(spec, sealed_key, clock.now() if current is None else current.created_at)
        await connection.execute(delete(foreign_engines).where(foreign_engines.c.name == spec.name))
        text = msgspec.json.encode(spec).decode()
        row = {"name": spec.name, "spec": text, "sealed_key": sealed_key, "created_at": made.created_at}
        await connection.execute(insert(foreign_engines).values(**row))
        await _drop_cards(connection, set() if current is None else current.spec.models.keys() - spec.models.keys())
        if note is not None:
            await note(connection)
    return made


async def remove(database: Database, name: str, *, note: Note | None = None) -> None:
    """Remove an engine, and the cards that no other engine serves. Raises Missing, StoreUnavailable."""
    async with change(database) as connection:
        found = [engine for engine in await read_engines(connection) if engine.spec.name == name]
        if not found:
            raise Missing(f"foreign engine {name}")
        await connection.execute(delete(foreign_engines).where(foreign_engines.c.name == name))
        await _drop_cards(connection, set(found[0].spec.models))
        if note is not None:
            await note(connection)


async def _make_cards(connection: AsyncConnection, spec: EngineSpec, now: datetime) -> None:
    """Check the model ids, and create the cards that are missing. Raises EngineError, InvalidModelId."""
    from catalog.builtin import builtin_models

    texts, aliases = await read_cards(connection), await read_aliases(connection)
    builtin = {name: model.card for name, model in builtin_models().items()}
    for model_id, model in spec.models.items():
        if parse_model_id(model_id) != model_id:
            raise EngineError(f"models: {model_id} must be a model id without a prefix")
        if model_id in aliases:
            raise EngineError(f"models: {model_id} is an alias; name the model {aliases[model_id]}")
        card = builtin.get(model_id) or (decode_card(texts[model_id]) if model_id in texts else None)
        if card is None:
            await write_card(connection, _new_card(model_id, model, now), now)
        elif card.task not in ("Text Generation", "Text Embeddings"):
            raise EngineError(f"models: {model_id} is a model for {card.task}, which engines do not offer")


def _new_card(model_id: str, model: EngineModel, now: datetime) -> ModelCard:
    """Return a card without files. Callers pay what the engine charges. Raises EngineError."""
    if model.context_window is None:
        raise EngineError(f"models: {model_id} is not in the catalog, so context_window is needed")
    is_embedding = model.task == "Text Embeddings"
    if is_embedding and model.output_dimensions is None:
        raise EngineError(f"models: {model_id} is an embedding model, so output_dimensions is needed")
    facts = CardFacts(
        name=model_id,
        task=model.task,
        description=f"{model.name}, served by a foreign engine.",
        schema="text_embeddings" if is_embedding else "openai_chat",
        native_shape="legacy" if is_embedding else "chat_completion",
        context_window=model.context_window,
        default_max_tokens=min(256, model.context_window),
        capabilities=frozenset() if is_embedding else frozenset({"function_calling", "json_mode", "multiple_choices"}),
        prices=Prices(input=neurons_per_million(model.input_usd), output=neurons_per_million(model.output_usd)),
        created_at=now,
        output_dimensions=model.output_dimensions if is_embedding else None,
        pooling="mean" if is_embedding else None,
        properties={WITHOUT_WEIGHTS: "true"},
    )
    return card_of(facts, manifest_of(facts, "", ()), "published")


async def _drop_cards(connection: AsyncConnection, names: set[str]) -> None:
    """Delete the cards without weights among `names` that no engine serves any more."""
    if not names:
        return
    served = {name for engine in await read_engines(connection) for name in engine.spec.models}
    texts = await read_cards(connection)
    for name in sorted(names - served):
        if name in texts and is_without_weights(decode_card(texts[name])):
            await delete_card(connection, name)


def is_without_weights(card: ModelCard) -> bool:
    """Return True if only foreign engines can serve the model."""
    return WITHOUT_WEIGHTS in card.properties
