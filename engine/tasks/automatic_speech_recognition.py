"""Automatic speech recognition: cut a recording at pauses; the worker (`one_pass/automatic_speech_recognition.py`)
transcribes the parts.

Models are trained on recordings of less than 30 seconds, so a longer one is cut at the quietest moments. The times of
words and sentences within a part are estimated from their lengths.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from msgspec import Struct

from engine.protocol.events import Result, Usage
from engine.protocol.tasks.automatic_speech_recognition import (
    BYTES_PER_SAMPLE,
    SAMPLE_RATE,
    AutomaticSpeechRecognition,
    Segment,
    Transcript,
    Word,
)
from engine.tasks.loading import LoadRequest
from engine.tasks.one_pass.host import OnePassHost
from engine.tasks.one_pass.task_model import OnePassModel
from engine.tasks.work import ModelDescription, Refused

MAX_PART_S = 24
_MIN_PART_S = 12
_FRAME = SAMPLE_RATE // 50  # 20 ms
_MIN_SAMPLES = SAMPLE_RATE // 10
_COST_PER_S = 50
_MAX_BATCH_COST = 4 * MAX_PART_S * _COST_PER_S
_SENTENCE = re.compile(r"[^.!?。！？]+[.!?。！？]*\s*")


class AudioPart(Struct, frozen=True, array_like=True):
    """A part of a recording for the worker: 16-bit samples, and the language code or ""."""

    samples: bytes
    language: str
    prompt: str

    @property
    def cost(self) -> int:
        return max(1, len(self.samples) * _COST_PER_S // (SAMPLE_RATE * BYTES_PER_SAMPLE))


class SpeechModelInfo(Struct, frozen=True):
    """The languages that the model transcribes; empty if the model finds the language out by itself."""

    languages: tuple[str, ...]


async def load(request: LoadRequest) -> SpeechRecognizer:
    """Load a speech model. Raises ModelLoadError."""
    entry = "engine.tasks.one_pass.automatic_speech_recognition:load"
    return SpeechRecognizer(await OnePassHost.start(request, entry, _MAX_BATCH_COST))


class SpeechRecognizer(OnePassModel[AutomaticSpeechRecognition]):
    """One speech model of this node."""

    def describe(self) -> ModelDescription:
        return ModelDescription(MAX_PART_S * _COST_PER_S, "audio/transcriptions", {"file": "@speech.wav"})

    async def read(self, task: AutomaticSpeechRecognition) -> list[AudioPart]:
        """Cut the recording. Raises Refused."""
        languages: tuple[str, ...] = tuple(self.host.info["languages"])
        language = task.language.lower().partition("-")[0]
        if language and languages and language not in languages:
            raise Refused("invalid_input", f"this model transcribes {', '.join(languages)} only")
        if len(task.audio) % BYTES_PER_SAMPLE or len(task.audio) < _MIN_SAMPLES * BYTES_PER_SAMPLE:
            raise Refused("invalid_input", "the recording must be at least 0.1 seconds long")
        bounds = await asyncio.to_thread(lambda: list(cut(samples_of(task.audio))))
        return [
            AudioPart(task.audio[start * BYTES_PER_SAMPLE : end * BYTES_PER_SAMPLE], language, task.prompt)
            for start, end in bounds
        ]

    def usage(self, task: AutomaticSpeechRecognition) -> Usage:
        return Usage(audio_ms=task.duration_ms)

    def render(self, task: AutomaticSpeechRecognition, outputs: list[Any]) -> Result:
        """Return the transcript; each output is the text of one part."""
        segments: list[Segment] = []
        bounds = cut(samples_of(task.audio))
        for (start, end), text in zip(bounds, outputs, strict=True):
            segments += _sentences(text.strip(), start / SAMPLE_RATE, end / SAMPLE_RATE)
        languages = self.host.info["languages"]
        language = task.language or (languages[0] if len(languages) == 1 else "")
        return Transcript(task.duration_ms / 1000, tuple(segments), language).to_result()


def samples_of(audio: bytes) -> np.ndarray:
    """Return 16-bit little-endian samples as an array."""
    return np.frombuffer(audio, dtype="<i2")


def cut(samples: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of parts of at most MAX_PART_S seconds, which end where the recording is quietest."""
    start = 0
    while len(samples) - start > MAX_PART_S * SAMPLE_RATE:
        earliest = start + _MIN_PART_S * SAMPLE_RATE
        window = samples[earliest : start + MAX_PART_S * SAMPLE_RATE].astype(np.float32)
        frames = window[: len(window) // _FRAME * _FRAME].reshape(-1, _FRAME)
        loudness = np.convolve((frames**2).mean(1), np.ones(10) / 10, mode="same")  # over 200 ms
        end = earliest + int(loudness.argmin()) * _FRAME
        yield start, end
        start = end
    yield start, len(samples)


def _sentences(text: str, start_s: float, end_s: float) -> list[Segment]:
    """Return the sentences of a part, with times in proportion to their numbers of characters."""
    if not text:
        return []
    s_per_character = (end_s - start_s) / len(text)
    return [
        _segment(found[0], start_s + found.start() * s_per_character, s_per_character)
        for found in _SENTENCE.finditer(text)
    ]


def _segment(sentence: str, start_s: float, s_per_character: float) -> Segment:
    words = tuple(
        Word(
            found[0],
            round(start_s + found.start() * s_per_character, 2),
            round(start_s + found.end() * s_per_character, 2),
        )
        for found in re.finditer(r"\S+", sentence)
    )
    end_s = start_s + len(sentence.rstrip()) * s_per_character
    return Segment(round(start_s, 2), round(end_s, 2), sentence.strip(), words)
