"""`POST A/ai/v1/audio/transcriptions`: OpenAI's transcription of a recording, from a form with the file."""

from __future__ import annotations

from typing import Any, get_args

from catalog.card import ModelCard
from catalog.schemas import input_schema
from engine.protocol.api_format import ApiFormat
from engine.protocol.outcome import Outcome
from engine.protocol.rendering import Renderer, encode
from engine.protocol.tasks.automatic_speech_recognition import AutomaticSpeechRecognition, Transcript, TranscriptFormat
from gateway.call import Endpoint, ParsedRequest
from gateway.http.exchange import Exchange
from gateway.http.multipart import form_fields
from gateway.model_names import require_task

_FORMATS = get_args(TranscriptFormat)


async def decode_form(exchange: Exchange, raw: bytes) -> dict[str, Any]:
    """Return the fields of a form, with files in base64. Raises Refusal."""
    return dict(await form_fields(raw, (exchange.header(b"content-type") or b"").decode("latin-1")))


def _parse(card: ModelCard, body: dict[str, Any]) -> ParsedRequest:
    require_task(card, AutomaticSpeechRecognition)
    accepted = input_schema(card, "openai_transcriptions").coerce_and_validate(body)
    format_: TranscriptFormat = accepted.get("response_format", "json")
    inputs = {
        "audio": accepted["file"],
        "language": accepted.get("language"),
        "initial_prompt": accepted.get("prompt"),
    }
    task = AutomaticSpeechRecognition.read_native(inputs, card)
    return ParsedRequest(task, False, lambda _call: TranscriptionRenderer(format_))


class TranscriptionRenderer(Renderer):
    """A transcript in one of OpenAI's formats."""

    def __init__(self, format_: TranscriptFormat) -> None:
        self.media_type = "application/json" if "json" in format_ else "text/plain; charset=utf-8"
        self._format = format_

    def whole(self, outcome: Outcome) -> bytes:
        found = Transcript.of(outcome)
        usage = {"type": "duration", "seconds": round(found.duration_s)}
        match self._format:
            case "text":
                return found.text.encode() + b"\n"
            case "srt":
                return found.to_srt().encode()
            case "vtt":
                return found.to_vtt().encode()
            case "json":
                return encode({"text": found.text, "usage": usage})
        segments = [
            {"id": number, "start": each.start, "end": each.end, "text": each.text}
            for number, each in enumerate(found.segments)
        ]
        return encode(
            {
                "task": "transcribe",
                "language": found.language,
                "duration": found.duration_s,
                "text": found.text,
                "segments": segments,
                "words": found.words,
                "usage": usage,
            }
        )


TRANSCRIPTIONS = Endpoint(
    ApiFormat.OPENAI,
    "Transcribe a recording.",
    _parse,
    schemas=("openai_transcriptions",),
    decode_body=decode_form,
    body_media_type="multipart/form-data",
)
