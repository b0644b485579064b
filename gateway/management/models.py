"""The catalog over HTTP: search and schema routes, and OpenAI's list of models. Reads memory only, no store."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct
from starlette.responses import Response

from catalog.authors import author_rows
from catalog.card import TASKS, ModelCard
from catalog.listed import ListedModel
from catalog.pricing import usd_per_million
from catalog.schemas import schema_document
from catalog.search import MAX_PER_PAGE, AnyModel, SearchQuery
from engine.protocol.sampling import SHARED_PARAMETERS
from gateway import envelope
from gateway.management.endpoint import Count, ManagementRequest, PageQuery, respond, takes_query
from gateway.model_names import find_model, find_shown
from gateway.openapi.operation import describe
from gateway.services import Services


class ModelsQuery(Struct, frozen=True):
    """Query parameters of the model search. `installed` selects models whose weights are installed."""

    search: str = ""
    task: str = ""
    author: str = ""
    source: Count = 0
    hide_experimental: bool = False
    include_deprecated: bool = False
    installed: bool = False
    page: Count = 1
    per_page: Count = MAX_PER_PAGE
    format: Literal["openrouter"] | None = None


class AuthorsQuery(PageQuery, frozen=True, kw_only=True):
    """Query parameters of the list of authors. `search` and `author` mean the same."""

    per_page: Count = MAX_PER_PAGE
    search: str = ""
    author: str = ""


class TasksQuery(PageQuery, frozen=True, kw_only=True):
    """Query parameters of the list of tasks. `search` and `task` mean the same."""

    per_page: Count = MAX_PER_PAGE
    search: str = ""
    task: str = ""


class SchemaQuery(Struct, frozen=True):
    """Query parameters of the schema route."""

    model: str


_SEARCH_RESPONSES = {
    "application/json": {
        "schema": {
            "anyOf": [
                {"$ref": "#/components/schemas/Envelope"},
                {"type": "object", "required": ["data"], "properties": {"data": {"type": "array"}}},
            ]
        }
    }
}


@describe(content=_SEARCH_RESPONSES)
@takes_query(ModelsQuery)
async def search(services: Services, _request: ManagementRequest, query: ModelsQuery) -> Response:
    """Search the catalog. A page past the end is empty; `format=openrouter` returns OpenRouter's list of models."""
    found = services.registry.search(
        SearchQuery(
            search=query.search,
            task=query.task,
            author=query.author,
            source=query.source or None,
            hide_experimental=query.hide_experimental,
            include_deprecated=query.include_deprecated,
            is_installed=query.installed,
            page=query.page or 1,
            per_page=query.per_page or MAX_PER_PAGE,
        )
    )
    if query.format == "openrouter":
        rows = [_openrouter_row(model) for model in found.models]
        return _json({"data": rows, "result": rows})  # the official client reads `result`
    info = envelope.page_info(found.page, found.per_page, len(found.rows), found.total_count)
    return Response(envelope.success(found.rows, result_info=info), media_type="application/json")


@takes_query(AuthorsQuery)
async def search_authors(services: Services, _request: ManagementRequest, query: AuthorsQuery) -> Response:
    """List the authors of models."""
    authors = [model.author for model in services.registry.search(SearchQuery(include_deprecated=True)).models]
    rows = author_rows(authors, (query.search or query.author).strip().lower())
    return query.respond(query.slice(rows), len(rows))


@takes_query(TasksQuery)
async def search_tasks(_services: Services, _request: ManagementRequest, query: TasksQuery) -> Response:
    """List the tasks of models."""
    words = (query.search or query.task).strip().lower()
    tasks = [task for task in TASKS.values() if words in task.name.lower() or words in task.description.lower()]
    rows = [{"id": task.id, "name": task.name, "description": task.description} for task in tasks]
    return query.respond(query.slice(rows), len(rows))


@takes_query(SchemaQuery)
async def schema(services: Services, _request: ManagementRequest, query: SchemaQuery) -> Response:
    """Get the JSON Schemas of a model's input and output."""
    return respond(schema_document(await find_shown(services.registry, query.model)))


async def list_openai(services: Services, _request: ManagementRequest) -> Response:
    """List all models in OpenAI's format."""
    rows = [_openai_row(card, card.name) for card in services.registry.all()]
    return _json({"object": "list", "data": rows})


async def get_openai(services: Services, request: ManagementRequest) -> Response:
    """Get a model in OpenAI's format, under the requested name."""
    resolved = await find_model(services.registry, request.path_params["model"])
    return _json(_openai_row(resolved.card, resolved.requested_name))


def _openai_row(card: ModelCard, name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": int(card.created_at.timestamp()), "owned_by": card.author}


def _openrouter_row(model: AnyModel) -> dict[str, Any]:
    """Return a model as OpenRouter lists it. Prices are US dollars per token, as text; they are 0 for a model that is
    priced by images or minutes."""
    is_text = model.task == "Text Generation"
    prices = model.neurons_per_million if isinstance(model, ListedModel) else model.prices
    cached_input = prices.input if prices.cached_input is None else prices.cached_input
    pricing = {"prompt": prices.input, "completion": prices.output, "input_cache_read": cached_input}
    return {
        "id": model.name,
        "name": model.name,
        "created": int(model.created_at.timestamp()),
        "hugging_face_id": model.hub if isinstance(model, ListedModel) else None,
        "context_length": model.context_window or model.max_input_tokens,
        "max_output_length": model.context_window if is_text else None,
        "input_modalities": _inputs(model),
        "output_modalities": _OUTPUTS.get(model.task, ["text"]),
        "pricing": {name: f"{usd_per_million(price) / 1e6:.12f}" for name, price in pricing.items()},
        "supported_features": sorted({_FEATURES.get(capability, capability) for capability in model.capabilities}),
        "supported_sampling_parameters": _SAMPLING_PARAMETERS if is_text else [],
    }


def _inputs(model: AnyModel) -> list[str]:
    found = _INPUTS.get(model.task, ["text"])
    return [*found, "image"] if "vision" in model.capabilities and "image" not in found else found


_AUDIO_IN, _IMAGE_IN = ["audio"], ["image"]
_INPUTS = {
    "Automatic Speech Recognition": _AUDIO_IN,
    "Voice Activity Detection": _AUDIO_IN,
    "Image Classification": _IMAGE_IN,
    "Object Detection": _IMAGE_IN,
    "Image-to-Text": ["text", "image"],
}
_OUTPUTS = {"Text Embeddings": ["embeddings"], "Text-to-Image": ["image"], "Text-to-Speech": ["audio"]}

_FEATURES = {"function_calling": "tools"}  # names that differ from OpenRouter's

_SAMPLING_PARAMETERS = [*SHARED_PARAMETERS, "stop", "max_tokens", "logit_bias", "logprobs", "top_logprobs"]


def _json(body: dict[str, Any]) -> Response:
    return Response(envelope.encode(body), media_type="application/json")
