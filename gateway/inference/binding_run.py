"""`POST /run`: the request of a Worker's AI binding (`env.AI.run`): any model, native format, no envelope.

The body is JSON, `{"inputs", "options"}`, or a single input as raw bytes (a stream or a form) with the other inputs in
the query. The binding does not send the raw input's name: its media type and the model's task determine it.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from catalog.card import ModelCard
from catalog.schemas import input_schema
from engine.protocol.api_format import ApiFormat
from engine.protocol.tasks.registry import TASKS
from gateway.call import Endpoint, ParsedRequest
from gateway.errors import Reason, Refusal
from gateway.http import binding, json_body
from gateway.http.exchange import Exchange
from gateway.http.multipart import read_form
from gateway.inference.run import parse_native, require_object

_RAW = ""  # key of the raw input until the model's task gives its name


@dataclass(frozen=True)
class _RawInput:
    media_type: str
    data: bytes


async def decode_body(exchange: Exchange, raw: bytes) -> dict[str, Any]:
    """Return the inputs and options as `ai/run` receives them. Raises Refusal."""
    others = next((value for name, value in parse_qsl(exchange.query_string) if name == b"userInputs"), None)
    if others is None:
        body = json_body.parse(raw)
        inputs = require_object(body.get("inputs"), "inputs")
        return inputs | {"options": require_object(body.get("options") or {}, "options")}
    if not raw:
        raise Refusal(Reason.BODY_MISSING)
    inputs = json_body.parse(others) if others.strip() else {}
    content_type = (exchange.header(b"content-type") or b"").decode("latin-1")
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type == "multipart/form-data":
        return inputs | await _form_fields(raw, content_type)
    return inputs | {_RAW: _RawInput(media_type, raw)}


async def _form_fields(raw: bytes, content_type: str) -> dict[str, Any]:
    """Return a form's texts, and its files in base64. Raises Refusal."""

    async def chunks() -> AsyncIterator[bytes]:
        yield raw

    async with read_form(chunks(), content_type, max_bytes=len(raw)) as form:
        return {
            name: value if isinstance(value, str) else base64.b64encode(await value.read()).decode("ascii")
            for name, value in form.items()
        }


def _parse(card: ModelCard, body: dict[str, Any]) -> ParsedRequest:
    raw = body.get(_RAW)
    if isinstance(raw, _RawInput):
        body |= _named_input(card, raw)
    return parse_native(card, {name: _unwrapped(value) for name, value in body.items()})


def _named_input(card: ModelCard, raw: _RawInput) -> dict[str, Any]:
    """Return a raw input under its name. Raises Refusal."""
    task = TASKS[card.task_slug]
    if raw.media_type.startswith("text/") and task.text_field:
        return {task.text_field: raw.data.decode("utf-8", "replace")}
    name = "audio" if raw.media_type.startswith("audio/") else task.binary_field
    if not input_schema(card).has_field(name):
        raise Refusal(Reason.INPUT_INVALID, f"'/{name}' is not accepted: this model takes no {name} as its body")
    return {name: base64.b64encode(raw.data).decode("ascii")}


def _unwrapped(value: Any) -> Any:
    """Return the body of an input in the AI SDK's form `{"body": base64, "contentType"}`, and other values as is."""
    if isinstance(value, dict) and value.keys() == {"body", "contentType"} and isinstance(value["body"], str):
        return value["body"]
    return value


BINDING_RUN = Endpoint(
    ApiFormat.NATIVE,
    "Run a model for a Worker's AI binding.",
    _parse,
    decode_body=decode_body,
    find_model_name=binding.model_of,
    accepts_batches=True,
)
