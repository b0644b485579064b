"""Options of live speech: the query of the request, or the inputs of a Worker's AI binding."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import parse_qsl

import msgspec
from msgspec import Meta, Struct

from engine.protocol.speech_detector import FRAME_MS
from engine.protocol.tasks.voice_activity_detection import MAX_SAMPLE_RATE, MIN_SAMPLE_RATE
from gateway.errors import Reason, Refusal
from gateway.http import binding, json_body
from gateway.http.exchange import Exchange

MAX_INSTRUCTIONS = 4000


class SpeechOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """Options that the client chooses for a session.

    The client sends 16-bit little-endian mono samples at `sample_rate`. Speech ends after `silence_ms` of silence.
    With `chat_model`, the model responds to each utterance, following `instructions`; with `speech_model` as well, the
    response is spoken in `voice`.
    """

    sample_rate: Annotated[int, Meta(ge=MIN_SAMPLE_RATE, le=MAX_SAMPLE_RATE)] = 16_000
    encoding: Literal["linear16"] = "linear16"
    language: Annotated[str, Meta(max_length=32)] = ""
    interim_results: bool = True
    silence_ms: Annotated[int, Meta(ge=200, le=5000)] = 500
    chat_model: Annotated[str, Meta(max_length=256)] = ""
    speech_model: Annotated[str, Meta(max_length=256)] = ""
    voice: Annotated[str, Meta(max_length=64)] = ""
    instructions: Annotated[str, Meta(max_length=MAX_INSTRUCTIONS)] = ""
    max_tokens: Annotated[int, Meta(ge=1, le=4096)] = 256

    @property
    def silence_frames(self) -> int:
        return max(1, self.silence_ms // FRAME_MS)


def read_options(exchange: Exchange) -> SpeechOptions:
    """Return the options of a request. Raises Refusal naming the parameter."""
    query = dict(parse_qsl(exchange.query_string.decode("ascii", "replace"), keep_blank_values=True))
    found: dict[str, object] = dict(query)
    if exchange.is_binding:
        body = query.get("body")
        found = {} if body is None else _inputs(json_body.parse(body.encode()))
    try:
        options = msgspec.convert(found, SpeechOptions, strict=False)
    except msgspec.ValidationError as error:
        raise Refusal(Reason.QUERY_INVALID, f"live speech: {error}".replace("$.", "").replace("`", "'")) from None
    if options.speech_model and not options.chat_model:
        raise Refusal(Reason.QUERY_INVALID, "'speech_model' needs 'chat_model', whose responses it speaks")
    return options


def _inputs(body: dict[str, object]) -> dict[str, object]:
    inputs = body.get("inputs") or {}
    if not isinstance(inputs, dict):
        raise Refusal(Reason.INPUT_INVALID, "Type mismatch of '/inputs', expected 'object'")
    return inputs


def model_of(exchange: Exchange, path_model: str | None) -> str:
    """Return the name of the speech recognition model. Raises Refusal."""
    return path_model if path_model is not None else binding.model_of(exchange)
