"""What models there are: the catalog's search and schema routes, and the OpenAI list. Memory reads, no store."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from catalog.authors import author_rows
from catalog.card import TASKS, ModelCard
from catalog.listed import ListedModel
from catalog.pricing import usd_per_million
from catalog.schemas import schema_document
from catalog.search import MAX_PER_PAGE, Shown
from gateway import envelope
from gateway.errors import Reason, Refusal
from gateway.management.objects import answer, is_true, page_query, whole_number
from gateway.model_names import find_model, find_shown
from gateway.services import Services


async def search(services: Services, request: Request) -> Response:
    """Rows of the catalog; a page past the end is empty, which is how clients know to stop."""
    query = request.query_params
    found = services.registry.search(
        search=query.get("search", ""),
        task=query.get("task", ""),
        author=query.get("author", ""),
        source=whole_number(request, "source", 0) or None,
        hide_experimental=is_true(request, "hide_experimental"),
        include_deprecated=is_true(request, "include_deprecated"),
        page=whole_number(request, "page", 1) or 1,
        per_page=whole_number(request, "per_page", MAX_PER_PAGE) or MAX_PER_PAGE,
    )
    if query.get("format") == "openrouter":
        listed = [_openrouter_row(model) for model in found.models]
        return _json({"data": listed, "result": listed})  # the official client asks for this, and looks for `result`
    rows = found.rows
    info = envelope.page_info(found.page, found.per_page, len(rows), found.total_count)
    return Response(envelope.success(rows, result_info=info), media_type="application/json")


async def search_authors(services: Services, request: Request) -> Response:
    """Whose models there are."""
    query = page_query(request, MAX_PER_PAGE)
    authors = [model.author for model in services.registry.search(include_deprecated=True).models]
    rows = author_rows(authors, _wanted(request, "author"))
    return query.answer(query.cut(rows), len(rows))


async def search_tasks(_services: Services, request: Request) -> Response:
    """What kinds of work models do."""
    query, words = page_query(request, MAX_PER_PAGE), _wanted(request, "task")
    tasks = [task for task in TASKS.values() if words in task.name.lower() or words in task.description.lower()]
    rows = [{"id": task.id, "name": task.name, "description": task.description} for task in tasks]
    return query.answer(query.cut(rows), len(rows))


async def schema(services: Services, request: Request) -> Response:
    """What a model takes and gives, as JSON Schema."""
    name = request.query_params.get("model")
    if not name:
        raise Refusal(Reason.QUERY_INVALID, "the query parameter 'model' is missing")
    return answer(schema_document(await find_shown(services.registry, name)))


async def list_openai(services: Services, _request: Request) -> Response:
    """Every model, as OpenAI lists them."""
    rows = [_openai_row(card, card.name) for card in services.registry.all()]
    return _json({"object": "list", "data": rows})


async def get_openai(services: Services, request: Request) -> Response:
    """One model, under the name it was asked for by."""
    resolved = await find_model(services.registry, request.path_params["model"])
    return _json(_openai_row(resolved.card, resolved.requested_name))


def _wanted(request: Request, name: str) -> str:
    """What a search is for, under either of its names."""
    return (request.query_params.get("search") or request.query_params.get(name, "")).strip().lower()


def _openai_row(card: ModelCard, name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": int(card.created_at.timestamp()), "owned_by": card.author}


def _openrouter_row(model: Shown) -> dict[str, Any]:
    """Prices are dollars per token, as text: what a call is charged here, so nothing for the tokens of a model that is
    priced by images or minutes, or has no price."""
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


def _inputs(model: Shown) -> list[str]:
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

_FEATURES = {"function_calling": "tools"}  # where OpenRouter's word is another

_SAMPLING_PARAMETERS = [
    "temperature", "top_p", "top_k", "min_p", "seed", "stop", "max_tokens",
    "repetition_penalty", "frequency_penalty", "presence_penalty", "logit_bias", "logprobs", "top_logprobs",
]  # fmt: skip


def _json(body: dict[str, Any]) -> Response:
    return Response(envelope.encode(body), media_type="application/json")
