"""The task voice activity detection: where a recording contains speech, or the next chunk of a live stream.

A live stream is a sequence of calls. Each call has the state that the previous call returned, so that any node can
process any chunk.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import msgspec
from msgspec import Struct

from engine.protocol.events import Result
from engine.protocol.fields import BadInput, media
from engine.protocol.images import MediaKind
from engine.protocol.outcome import Outcome
from engine.protocol.rendering import Renderer, encode
from engine.protocol.speech_detector import FRAME_MS, speech_spans
from engine.protocol.tasks.automatic_speech_recognition import BYTES_PER_SAMPLE, SAMPLE_RATE
from engine.protocol.tasks.task import ModelLimits, Task

MIN_SAMPLE_RATE, MAX_SAMPLE_RATE = 8_000, 48_000
_MAX_SILENCE_MS = 10_000
_DEFAULT_SILENCE_MS = 300


class VoiceActivityDetection(Task, frozen=True, tag="voice-activity-detection", omit_defaults=True, kw_only=True):
    """Audio in which to find speech.

    `audio` is the file as the client sent it until the gateway has decoded it; nodes receive little-endian 16-bit mono
    samples at `sample_rate`. With `is_live`, `audio` is the next chunk of a stream, `state` the state after the
    previous chunk (empty for the first), and the result a `LiveChunk`. Otherwise silences shorter than `silence_ms` do
    not end speech.
    """

    slug: ClassVar[str] = "voice-activity-detection"
    native_schemas: ClassVar[tuple[str, ...]] = ("voice_activity_detection",)
    binary_field: ClassVar[str] = "audio"
    media_fields: ClassVar[Mapping[str, MediaKind]] = {"audio": "audio"}

    audio: bytes
    sample_rate: int = SAMPLE_RATE
    is_live: bool = False
    state: bytes = b""
    silence_ms: int = _DEFAULT_SILENCE_MS

    @property
    def audio_ms(self) -> int:
        return len(self.audio) * 1000 // (self.sample_rate * BYTES_PER_SAMPLE)

    @classmethod
    def read_native(cls, body: Mapping[str, Any], _model: ModelLimits) -> Self:
        silence_ms = body.get("silence_ms", _DEFAULT_SILENCE_MS)
        if type(silence_ms) is not int or not FRAME_MS <= silence_ms <= _MAX_SILENCE_MS:
            raise BadInput(f"'/silence_ms' must be between {FRAME_MS} and {_MAX_SILENCE_MS}")
        return cls(audio=media(body, "audio"), silence_ms=silence_ms)

    def native_renderer(self) -> NativeSpeechSpans:
        return NativeSpeechSpans(self.silence_ms)


class LiveChunk(Struct, frozen=True, array_like=True):
    """The result of one chunk of a stream: the speech probability of each frame that is complete, these frames as
    16-bit samples at SAMPLE_RATE, and the state for the next chunk."""

    probabilities: list[float]
    samples: bytes
    state: bytes

    @classmethod
    def of_result(cls, result: Result) -> Self:
        return msgspec.msgpack.decode(result.data, type=cls)

    def to_result(self) -> Result:
        return Result(data=msgspec.msgpack.encode(self))


class NativeSpeechSpans(Renderer):
    """The native response: spans of speech in seconds, and the length of the recording."""

    def __init__(self, silence_ms: int) -> None:
        self._silence_frames = max(1, silence_ms // FRAME_MS)

    def whole(self, outcome: Outcome) -> bytes:
        assert outcome.result is not None
        fields = outcome.result.fields
        spans = speech_spans(fields["probabilities"], self._silence_frames)
        seconds = FRAME_MS / 1000
        speech = [{"start": round(start * seconds, 3), "end": round(end * seconds, 3)} for start, end in spans]
        return encode({"speech": speech, "duration": fields["duration_s"]})
