"""The task automatic speech recognition: the words of a recording, with times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from msgspec import Struct

from engine.protocol.fields import BadInput, media, text
from engine.protocol.images import MediaKind
from engine.protocol.outcome import Outcome
from engine.protocol.rendering import Renderer, encode
from engine.protocol.tasks.output import TaskOutput
from engine.protocol.tasks.task import ModelLimits, Task

SAMPLE_RATE = 16_000
BYTES_PER_SAMPLE = 2
_MAX_PROMPT_CHARACTERS = 1000
_MAX_LANGUAGE_CHARACTERS = 32
_ESTIMATED_TOKENS_PER_S = 5

TranscriptFormat = Literal["json", "text", "srt", "verbose_json", "vtt"]


class AutomaticSpeechRecognition(
    Task, frozen=True, tag="automatic-speech-recognition", omit_defaults=True, kw_only=True
):
    """A recording to transcribe.

    `audio` is the file as the client sent it until the gateway has decoded it; nodes receive little-endian 16-bit mono
    samples at SAMPLE_RATE. `language` is a code such as `en`, or "" to let the model find out. `prompt` is text that
    precedes the recording, for models that use such a text.
    """

    slug: ClassVar[str] = "automatic-speech-recognition"
    native_schemas: ClassVar[tuple[str, ...]] = ("speech_recognition", "speech_recognition_large")
    binary_field: ClassVar[str] = "audio"
    media_fields: ClassVar[Mapping[str, MediaKind]] = {"audio": "audio"}

    audio: bytes
    language: str = ""
    prompt: str = ""

    @property
    def duration_ms(self) -> int:
        """The length of the decoded recording."""
        return len(self.audio) * 1000 // (SAMPLE_RATE * BYTES_PER_SAMPLE)

    @property
    def audio_ms(self) -> int:
        return self.duration_ms

    @property
    def num_estimated_tokens(self) -> int:
        return self.duration_ms * _ESTIMATED_TOKENS_PER_S // 1000

    @classmethod
    def read_native(cls, body: Mapping[str, Any], _model: ModelLimits) -> Self:
        if body.get("task") not in (None, "transcribe"):
            raise BadInput("'/task' must be transcribe: translation of speech is not supported")
        language = body.get("language") or body.get("source_lang") or ""
        return cls(
            audio=media(body, "audio"),
            language=text(language, "/language", max_characters=_MAX_LANGUAGE_CHARACTERS),
            prompt=text(body.get("initial_prompt") or "", "/initial_prompt", max_characters=_MAX_PROMPT_CHARACTERS),
        )

    def native_renderer(self) -> NativeTranscript:
        return NativeTranscript()


class Word(Struct, frozen=True):
    """A word, with its start and end in seconds."""

    word: str
    start: float
    end: float


class Segment(Struct, frozen=True):
    """A part of a recording between two pauses, with its start and end in seconds. Times of words are estimated from
    the lengths of the words unless the model reports them."""

    start: float
    end: float
    text: str
    words: tuple[Word, ...] = ()


class Transcript(TaskOutput, frozen=True):
    """The output. `language` is "" if the model does not report a language."""

    duration_s: float
    segments: tuple[Segment, ...]
    language: str = ""

    @property
    def text(self) -> str:
        return " ".join(segment.text for segment in self.segments if segment.text)

    @property
    def words(self) -> list[Word]:
        return [word for segment in self.segments for word in segment.words]

    def to_vtt(self) -> str:
        """Return the transcript as WebVTT."""
        cues = [f"{_clock(each.start, '.')} --> {_clock(each.end, '.')}\n{each.text}\n" for each in self.segments]
        return "WEBVTT\n\n" + "\n".join(cues)

    def to_srt(self) -> str:
        """Return the transcript as SubRip."""
        cues = [
            f"{number}\n{_clock(each.start, ',')} --> {_clock(each.end, ',')}\n{each.text}\n"
            for number, each in enumerate(self.segments, 1)
        ]
        return "\n".join(cues)


class NativeTranscript(Renderer):
    """The native response: the fields of Workers AI's whisper models and of its large model together."""

    def whole(self, outcome: Outcome) -> bytes:
        found = Transcript.of(outcome)
        return encode(
            {
                "text": found.text,
                "word_count": len(found.words),
                "words": found.words,
                "segments": found.segments,
                "vtt": found.to_vtt(),
                "transcription_info": {"language": found.language or None, "duration": found.duration_s},
            }
        )


def _clock(seconds: float, separator: str) -> str:
    """Return hours:minutes:seconds and milliseconds."""
    total_ms = round(seconds * 1000)
    minutes, rest_ms = divmod(total_ms, 60_000)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{rest_ms // 1000:02d}{separator}{rest_ms % 1000:03d}"
