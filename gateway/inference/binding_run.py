"""`POST /run`: the request of a Worker's AI binding (`env.AI.run`): any model, native format, no envelope.

The body is JSON, `{"inputs", "options"}`, or a single input as raw bytes (a stream or a form) with the other inputs in
the query. The binding does not send the raw input's name: its media type and the model's task determine it.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl

from catalog.card import ModelCard
from engine.protocol.api_format import ApiFormat
from gateway.call import Endpoint, ParsedRequest
from gateway.errors import Reason, Refusal
from gateway.http import binding, json_body
from gateway.http.exchange import Exchange
from gateway.http.multipart import form_fields
from gateway.inference.run import RAW, RawInput, named_input, pack_byte_arrays, parse_native, require_object


async def decode_body(exchange: Exchange, raw: bytes) -> dict[str, Any]:
    """Return the inputs and options as `ai/run` receives them. Raises Refusal."""
    others = next((value for name, value in parse_qsl(exchange.query_string) if name == b"userInputs"), None)
    if others is None:
        body = json_body.parse(pack_byte_arrays(raw))
        inputs = require_object(body.get("inputs"), "inputs")
        return inputs | {"options": require_object(body.get("options") or {}, "options")}
    if not raw:
        raise Refusal(Reason.BODY_MISSING)
    inputs = json_body.parse(others) if others.strip() else {}
    content_type = (exchange.header(b"content-type") or b"").decode("latin-1")
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type == "multipart/form-data":
        return inputs | await form_fields(raw, content_type)
    return inputs | {RAW: RawInput(media_type, raw)}


def _parse(card: ModelCard, body: dict[str, Any]) -> ParsedRequest:
    raw = body.get(RAW)
    if isinstance(raw, RawInput):
        body |= named_input(card, raw)
    return parse_native(card, {name: _unwrapped(value) for name, value in body.items()})


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
