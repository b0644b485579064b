"""What models there are: the catalog's search and schema routes, and the OpenAI list. Memory reads, no store."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from catalog.card import ModelCard, parse_model_id
from catalog.pricing import usd_per_million
from catalog.registry import Resolved
from catalog.schemas import schema_document
from gateway import envelope
from gateway.errors import Reason, Refusal
from gateway.services import Services


async def search(services: Services, request: Request) -> Response:
    """Rows of the catalog; a page past the end is empty, which is how clients know to stop."""
    query = request.query_params
    found = services.registry.search(
        search=query.get("search", ""),
        task=query.get("task", ""),
        author=query.get("author", ""),
        source=_integer(query.get("source"), "source", None),
        hide_experimental=query.get("hide_experimental", "").lower() == "true",
        include_deprecated=query.get("include_deprecated", "").lower() == "true",
        page=_integer(query.get("page"), "page", 1) or 1,
        per_page=_integer(query.get("per_page"), "per_page", 50) or 50,
    )
    if query.get("format") == "openrouter":
        names = {row["name"] for row in found.rows}
        return _json({"data": [_openrouter_row(card) for card in services.registry.all() if card.name in names]})
    info = envelope.page_info(found.page, found.per_page, len(found.rows), found.total_count)
    return Response(envelope.success(found.rows, result_info=info), media_type="application/json")


async def schema(services: Services, request: Request) -> Response:
    """What a model takes and gives, as JSON Schema."""
    name = request.query_params.get("model")
    if not name:
        raise Refusal(Reason.QUERY_INVALID, "the query parameter 'model' is missing")
    card = _find(services, name).card
    return Response(envelope.success(schema_document(card)), media_type="application/json")


async def list_openai(services: Services, _request: Request) -> Response:
    """Every model, as OpenAI lists them."""
    rows = [_openai_row(card, card.name) for card in services.registry.all()]
    return _json({"object": "list", "data": rows})


async def get_openai(services: Services, request: Request) -> Response:
    """One model, under the name it was asked for by."""
    resolved = _find(services, request.path_params["model"])
    return _json(_openai_row(resolved.card, resolved.requested_name))


def _find(services: Services, text: str) -> Resolved:
    name = parse_model_id(text)
    resolved = services.registry.find(name)
    if resolved is None:
        raise Refusal(Reason.MODEL_UNKNOWN, name)
    return resolved


def _integer(text: str | None, name: str, default: int | None) -> int | None:
    if text is None or text == "":
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise Refusal(Reason.QUERY_INVALID, f"the query parameter '{name}' must be a whole number")
    return int(text)


def _openai_row(card: ModelCard, name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": int(card.created_at.timestamp()), "owned_by": card.author}


def _openrouter_row(card: ModelCard) -> dict[str, Any]:
    """Prices are dollars per token, as text."""
    is_text = card.task_slug == "text-generation"
    cached_input = card.prices.input if card.prices.cached_input is None else card.prices.cached_input
    prices = {"prompt": card.prices.input, "completion": card.prices.output, "input_cache_read": cached_input}
    return {
        "id": card.name,
        "name": card.name,
        "created": int(card.created_at.timestamp()),
        "hugging_face_id": None,
        "context_length": card.context_window,
        "max_output_length": card.context_window,
        "input_modalities": ["text"],
        "output_modalities": ["text"] if is_text else ["embeddings"],
        "pricing": {name: f"{usd_per_million(price) / 1e6:.12f}" for name, price in prices.items()},
        "supported_features": sorted({_FEATURES.get(capability, capability) for capability in card.capabilities}),
        "supported_sampling_parameters": _SAMPLING_PARAMETERS if is_text else [],
    }


_FEATURES = {"function_calling": "tools"}  # where OpenRouter's word is another

_SAMPLING_PARAMETERS = [
    "temperature", "top_p", "top_k", "min_p", "seed", "stop", "max_tokens",
    "repetition_penalty", "frequency_penalty", "presence_penalty", "logit_bias", "logprobs", "top_logprobs",
]  # fmt: skip


def _json(body: dict[str, Any]) -> Response:
    return Response(envelope.encode(body), media_type="application/json")
