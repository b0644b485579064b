"""Workers AI's native format: `POST A/ai/run/{model}`, and `POST A/ai/run` with the model named in the body.

Each task reads and renders its own native format (`engine/protocol/tasks/`). With `requests` a body holds a batch,
which is queued if the query says `queueRequest=true`; `request_id` polls a queued batch. A body that is not JSON is the
one input of a model that takes a file, such as a recording, or a form with the inputs.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, replace
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from catalog.card import ModelCard
from catalog.schemas import input_schema
from engine.protocol.api_format import ApiFormat
from engine.protocol.fields import boolean
from engine.protocol.tasks.registry import TASKS
from gateway.call import Endpoint, ParsedRequest
from gateway.errors import Reason, Refusal
from gateway.http import json_body
from gateway.http.exchange import Exchange
from gateway.http.multipart import form_fields
from gateway.inference.chat_completions import parse_chat
from gateway.inference.completions import parse_completion
from gateway.inference.responses import parse_response

MAX_ARRAY_BYTES = 1_000_000
_MIN_PACKED_BYTES = 4096
_BYTE_ARRAY = re.compile(rb'("(?:audio|image|mask)"\s*:\s*)(\[[0-9,\s]*\])')
_decode_bytes = msgspec.json.Decoder(list[Annotated[int, Meta(ge=0, le=255)]]).decode

RAW = ""  # key of a raw input until the model's task gives its name


@dataclass(frozen=True)
class RawInput:
    """A body that is one input itself, with its media type."""

    media_type: str
    data: bytes


def pack_byte_arrays(body: bytes) -> bytes:
    """Return a JSON body with the arrays of bytes of media fields as base64, which is quick to parse and to check.

    Other values of these fields stay, and are rejected later. Raises Refusal for an array that takes long to decode.
    """

    def pack(found: re.Match[bytes]) -> bytes:
        if found[2].count(b",") >= MAX_ARRAY_BYTES:
            remedy = "send the file itself as the body, or base64"
            raise Refusal(Reason.INPUT_INVALID, f"an array may have at most {MAX_ARRAY_BYTES} bytes: {remedy}")
        try:
            return found[1] + b'"' + base64.b64encode(bytes(_decode_bytes(found[2]))) + b'"'
        except msgspec.MsgspecError:
            return found[0]

    return _BYTE_ARRAY.sub(pack, body) if len(body) > _MIN_PACKED_BYTES else body


async def _decode_body(exchange: Exchange, raw: bytes) -> dict[str, Any]:
    """Decode a JSON body, whatever its content type says; other bodies are a raw input. Raises Refusal."""
    content_type = (exchange.header(b"content-type") or b"").decode("latin-1")
    media_type = content_type.partition(";")[0].strip().lower()
    if raw[:64].lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"{" or not raw:  # also behind a byte order mark
        return json_body.parse(pack_byte_arrays(raw))
    if media_type == "multipart/form-data":
        return dict(await form_fields(raw, content_type))
    return {RAW: RawInput(media_type, raw)}


def _parse(card: ModelCard, body: dict[str, Any]) -> ParsedRequest:
    raw = body.get(RAW)
    if isinstance(raw, RawInput):
        if not input_schema(card).has_field(TASKS[card.task_slug].binary_field):
            json_body.parse(raw.data)  # raises the error of a body that must be JSON
        body = named_input(card, raw)
    return parse_native(card, body)


def named_input(card: ModelCard, raw: RawInput) -> dict[str, Any]:
    """Return a raw input under its name. Raises Refusal."""
    task = TASKS[card.task_slug]
    if raw.media_type.startswith("text/") and task.text_field:
        return {task.text_field: raw.data.decode("utf-8", "replace")}
    name = "audio" if raw.media_type.startswith("audio/") else task.binary_field
    if not input_schema(card).has_field(name):
        raise Refusal(Reason.INPUT_INVALID, f"'/{name}' is not accepted: this model takes no {name} as its body")
    return {name: base64.b64encode(raw.data).decode("ascii")}


def parse_native(card: ModelCard, body: dict[str, Any]) -> ParsedRequest:
    """Parse a body in the native format of a card, which can be one of OpenAI's formats."""
    if card.schema == "text_generation_responses":
        return _parse_by_field(card, body)
    if card.native_shape == "chat_completion":
        return parse_chat(card, body, card.schema)
    accepted = input_schema(card).coerce_and_validate(body)
    task = TASKS[card.task_slug].read_native(accepted, card)
    return ParsedRequest(
        task,
        task.always_streams or (task.can_stream and boolean(accepted, "stream", False)),
        lambda _call: task.native_renderer(),
        lora=accepted.get("lora"),
    )


def _parse_by_field(card: ModelCard, body: dict[str, Any]) -> ParsedRequest:
    """Parse a body for a card that accepts three formats; the field that is present decides which."""
    if body.get("input") is not None:
        return parse_response(card, body)
    if body.get("messages") is None and body.get("prompt") is not None:
        return parse_completion(card, body)
    return parse_chat(card, body)


async def _decode_named(_exchange: Exchange, raw: bytes) -> dict[str, Any]:
    """Decode `{"model", "input", "options"}` into a body as the route with the model in its path receives it."""
    body = json_body.parse(pack_byte_arrays(raw))
    if body.get("input") is None:
        raise Refusal(Reason.INPUT_INVALID, "required properties at '/' are 'input'")
    inputs, options = require_object(body["input"], "input"), require_object(body.get("options") or {}, "options")
    return inputs | {"model": body.get("model"), "options": options}


def require_object(value: Any, name: str) -> dict[str, Any]:
    """Return a field that must be an object. Raises Refusal."""
    if not isinstance(value, dict):
        raise Refusal(Reason.INPUT_INVALID, f"Type mismatch of '/{name}', expected 'object'")
    return value


RUN = Endpoint(
    ApiFormat.NATIVE,
    "Run a model with inputs in its native format.",
    _parse,
    decode_body=_decode_body,
    accepts_batches=True,
)
RUN_NAMED = replace(
    RUN, summary="Run the model that the body names.", schemas=("run_named",), decode_body=_decode_named
)
