"""`POST A/ai/v1/audio/speech`: OpenAI's speech synthesis. The audio is sent while later sentences are spoken."""

from __future__ import annotations

from typing import Any, cast

from catalog.card import ModelCard
from catalog.schemas import input_schema
from engine.protocol.api_format import ApiFormat
from engine.protocol.fields import BadInput
from engine.protocol.tasks.text_to_speech import MEDIA_TYPES, AudioFormat, Speech, TextToSpeech, read_text
from gateway.call import Endpoint, ParsedRequest
from gateway.model_names import require_task


def _parse(card: ModelCard, body: dict[str, Any]) -> ParsedRequest:
    require_task(card, TextToSpeech)
    accepted = input_schema(card, "openai_speech").coerce_and_validate(body)
    format_ = accepted.get("response_format", "mp3")
    if format_ not in MEDIA_TYPES:
        raise BadInput(f"'/response_format' must be {', '.join(MEDIA_TYPES)}: {format_} is not supported")
    if accepted.get("stream_format", "audio") != "audio":
        raise BadInput("'/stream_format' must be audio: sse is not supported")
    task = TextToSpeech(
        text=read_text(accepted, "input"),
        voice=accepted.get("voice", ""),
        speed=float(accepted.get("speed", 1)),
        format=cast(AudioFormat, format_),
    )
    return ParsedRequest(task, True, lambda _call: Speech(task))


SPEECH = Endpoint(ApiFormat.OPENAI, "Read a text aloud.", _parse, schemas=("openai_speech",))
