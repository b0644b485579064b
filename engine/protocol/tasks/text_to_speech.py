"""The task text to speech: a text read aloud, sent as encoded audio sentence by sentence."""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from engine.protocol.fields import BadInput, number, text
from engine.protocol.outcome import Outcome
from engine.protocol.rendering import Renderer, encode
from engine.protocol.tasks.task import CHARACTERS_PER_TOKEN, ModelLimits, Task

MAX_CHARACTERS = 5000
SAMPLE_RATES = (8000, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)  # rates that MP3 supports
DEFAULT_SAMPLE_RATE = 24_000
BYTES_PER_SAMPLE = 2
MIN_SPEED, MAX_SPEED = 0.25, 4.0
_MAX_NAME_CHARACTERS = 64
_ESTIMATED_MS_PER_CHARACTER = 75
_UNKNOWN_SIZE = 0xFFFFFFFF  # size in the header of a WAV file of unknown length
_WAV_HEADER_BYTES = 44
_JSON_SCHEMA = "text_to_speech_base64"

AudioFormat = Literal["mp3", "pcm", "wav"]
MEDIA_TYPES: dict[AudioFormat, str] = {"mp3": "audio/mpeg", "pcm": "audio/pcm", "wav": "audio/wav"}
_FORMATS: dict[str, AudioFormat] = {"mp3": "mp3", "linear16": "wav"}  # Workers AI's name of an encoding -> format


class TextToSpeech(Task, frozen=True, tag="text-to-speech", omit_defaults=True, kw_only=True):
    """A text to read aloud.

    `voice` and `language` are "" for the model's default. Nodes send `Data` events: MP3 frames for the format `mp3`,
    little-endian 16-bit mono samples for the others. `is_json` is True if the native response is a JSON document.
    """

    slug: ClassVar[str] = "text-to-speech"
    native_schemas: ClassVar[tuple[str, ...]] = ("text_to_speech", _JSON_SCHEMA)
    text_field: ClassVar[str] = "text"
    max_unread_bytes: ClassVar[int] = 64 * 1024 * 1024  # clients that play the audio read slowly

    text: str
    voice: str = ""
    language: str = ""
    speed: float = 1.0
    format: AudioFormat = "mp3"
    sample_rate: int = DEFAULT_SAMPLE_RATE
    is_json: bool = False

    @property
    def always_streams(self) -> bool:
        return not self.is_json

    @property
    def num_characters(self) -> int:
        return len(self.text)

    @property
    def audio_ms(self) -> int:
        """An estimate of the length of the speech."""
        return round(len(self.text) * _ESTIMATED_MS_PER_CHARACTER / self.speed)

    @property
    def num_estimated_tokens(self) -> int:
        return len(self.text) // CHARACTERS_PER_TOKEN

    @classmethod
    def read_native(cls, body: Mapping[str, Any], model: ModelLimits) -> Self:
        if model.schema == _JSON_SCHEMA:
            language = text(body.get("lang") or "", "/lang", max_characters=_MAX_NAME_CHARACTERS)
            return cls(text=read_text(body, "prompt"), language=language, is_json=True)
        return cls(
            text=read_text(body, "text"),
            voice=text(body.get("speaker") or "", "/speaker", max_characters=_MAX_NAME_CHARACTERS),
            format=_read_format(body),
            sample_rate=read_sample_rate(body),
        )

    def native_renderer(self) -> Renderer:
        return SpeechInJson() if self.is_json else Speech(self)


def read_text(body: Mapping[str, Any], name: str) -> str:
    """Return a text with something to say. Raises BadInput."""
    found = text(body.get(name), f"/{name}", max_characters=MAX_CHARACTERS)
    if not found.strip():
        raise BadInput(f"'/{name}' must not be blank")
    return found


def read_sample_rate(body: Mapping[str, Any]) -> int:
    """Return the sample rate in Hz. Raises BadInput."""
    rate = number(body, "sample_rate", DEFAULT_SAMPLE_RATE, minimum=1, maximum=SAMPLE_RATES[-1])
    if rate not in SAMPLE_RATES:
        raise BadInput(f"'/sample_rate' must be one of {', '.join(map(str, SAMPLE_RATES))}")
    return int(rate)


def _read_format(body: Mapping[str, Any]) -> AudioFormat:
    """Return the format of Workers AI's `encoding` and `container`. Raises BadInput."""
    container = body.get("container")
    encoding = body.get("encoding") or ("linear16" if container == "wav" else "mp3")
    if encoding not in _FORMATS:
        raise BadInput(f"'/encoding' must be {' or '.join(_FORMATS)}: {encoding} is not supported")
    if container in (None, "none"):
        return "pcm" if encoding == "linear16" and container == "none" else _FORMATS[encoding]
    if container != "wav" or encoding != "linear16":
        raise BadInput(f"'/container' must be wav with linear16, or none: {container} with {encoding} is not supported")
    return "wav"


class Speech(Renderer):
    """The encoded audio itself, streamed or whole."""

    def __init__(self, task: TextToSpeech) -> None:
        self.media_type = self.stream_media_type = MEDIA_TYPES[task.format]
        self._task = task

    def whole(self, outcome: Outcome) -> bytes:
        audio = b"".join(outcome.pieces)
        return self._header(len(audio)) + audio

    def whole_json(self, outcome: Outcome) -> bytes:
        return _json(self.whole(outcome))

    def begin(self, _started: Any) -> bytes:
        return self._header(_UNKNOWN_SIZE)

    def data(self, data: bytes) -> bytes:
        return data

    def end(self, _finished: Any) -> bytes:
        return b""

    def _header(self, num_bytes: int) -> bytes:
        """Return what precedes the samples: the header of a WAV file, or nothing."""
        if self._task.format != "wav":
            return b""
        rate, data_bytes = self._task.sample_rate, min(num_bytes, _UNKNOWN_SIZE)
        file_bytes = min(data_bytes + _WAV_HEADER_BYTES - 8, _UNKNOWN_SIZE)
        layout = (16, 1, 1, rate, rate * BYTES_PER_SAMPLE, BYTES_PER_SAMPLE, 8 * BYTES_PER_SAMPLE)  # PCM, mono
        return struct.pack("<4sI8sIHHIIHH4sI", b"RIFF", file_bytes, b"WAVEfmt ", *layout, b"data", data_bytes)


class SpeechInJson(Renderer):
    """`{"audio": base64}` with a whole MP3 file."""

    def whole(self, outcome: Outcome) -> bytes:
        return _json(b"".join(outcome.pieces))


def _json(audio: bytes) -> bytes:
    return encode({"audio": base64.b64encode(audio).decode("ascii")})
