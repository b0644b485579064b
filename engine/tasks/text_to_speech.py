"""Text to speech: cut a text into sentences; the worker (`one_pass/text_to_speech.py`) speaks one after the other.

Each sentence is sent as soon as it is spoken, and the sentences of several calls take turns.
"""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct

from engine.protocol.events import Data, Result, Usage
from engine.protocol.tasks.text_to_speech import MAX_CHARACTERS, AudioFormat, TextToSpeech
from engine.tasks.loading import LoadRequest
from engine.tasks.one_pass.host import OnePassHost, OutputStream
from engine.tasks.one_pass.task_model import OnePassModel
from engine.tasks.work import ModelDescription, Refused

MAX_SENTENCE_CHARACTERS = 300
# The voices of OpenAI's and Deepgram's models, which stand for a model's default voice.
_KNOWN_VOICES = frozenset(
    """alloy ash ballad cedar coral echo fable marin nova onyx sage shimmer verse
    angus arcas asteria athena helios hera luna orion orpheus perseus stella zeus""".split()
)
_BETWEEN_SENTENCES = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])|\n+")


class Sentence(Struct, frozen=True, array_like=True):
    """A sentence for the worker. `voice` is one of the model's."""

    text: str
    voice: str
    speed: float
    format: AudioFormat
    sample_rate: int

    @property
    def cost(self) -> int:
        return len(self.text)


class SpokenSentence(Struct, frozen=True, array_like=True):
    """The output for a sentence: encoded audio, its length, and the characters that were spoken; or an error."""

    audio: bytes
    audio_ms: int
    num_characters: int
    error: str = ""


class SpeakingModelInfo(Struct, frozen=True):
    """The voices of a model, the default first, with their languages. A language of "" is unknown."""

    voices: dict[str, str]


async def load(request: LoadRequest) -> Speaker:
    """Load a model that speaks. Raises ModelLoadError."""
    entry = "engine.tasks.one_pass.text_to_speech:load"
    return Speaker(await OnePassHost.start(request, entry, max_batch_cost=1))


class Speaker(OnePassModel[TextToSpeech]):
    """One model of this node that speaks."""

    def describe(self) -> ModelDescription:
        body = {"input": "Hello, this is a test.", "voice": "alloy"}
        return ModelDescription(MAX_CHARACTERS, "audio/speech", body)

    async def read(self, task: TextToSpeech) -> list[Sentence]:
        """Return the sentences. Raises Refused."""
        voice = self._choose_voice(task)
        return [Sentence(text, voice, task.speed, task.format, task.sample_rate) for text in sentences(task.text)]

    def _choose_voice(self, task: TextToSpeech) -> str:
        """Return the voice that was asked for, or the first of the language. Raises Refused."""
        voices: dict[str, str] = self.host.info["voices"]
        if task.voice in voices:
            return task.voice
        if task.voice and task.voice.lower() not in _KNOWN_VOICES:
            raise Refused("invalid_input", f"'/voice' must be one of {', '.join(voices)}")
        language = task.language.lower().partition("-")[0]
        for voice, spoken in voices.items():
            if not language or spoken.partition("-")[0] in ("", language):
                return voice
        raise Refused("invalid_input", f"this model speaks {', '.join(sorted(set(voices.values())))} only")

    def usage(self, task: TextToSpeech) -> Usage:
        return Usage(num_characters=len(task.text))

    def stream(self, task: TextToSpeech) -> OutputStream:  # noqa: ARG002
        return OutputStream(_event_of, _usage_of)

    def render(self, _task: TextToSpeech, _outputs: list[Any]) -> Result:
        raise AssertionError("the outputs are streamed")


def _event_of(output: list[Any]) -> Data:
    """Return the audio of a sentence. Raises RuntimeError if the sentence could not be spoken."""
    spoken = SpokenSentence(*output)
    if spoken.error:
        raise RuntimeError(spoken.error)
    return Data(spoken.audio)


def _usage_of(outputs: list[Any]) -> Usage:
    """Return the usage of the sentences that were spoken."""
    spoken = [SpokenSentence(*output) for output in outputs]
    return Usage(
        audio_ms=sum(each.audio_ms for each in spoken), num_characters=sum(each.num_characters for each in spoken)
    )


def sentences(text: str) -> list[str]:
    """Return the sentences of a text, at least one. Joined, they are the text without spaces around sentences."""
    found = [part for sentence in _BETWEEN_SENTENCES.split(text) for part in _parts(sentence.strip())]
    return found or [text.strip()]


def _parts(sentence: str) -> list[str]:
    """Return a sentence in parts of at most MAX_SENTENCE_CHARACTERS, cut after commas or between words if possible."""
    parts = []
    while len(sentence) > MAX_SENTENCE_CHARACTERS:
        window = sentence[:MAX_SENTENCE_CHARACTERS]
        cut = max(window.rfind(mark) for mark in (", ", "; ", ": ", "，", "、")) + 1
        cut = cut or window.rfind(" ") + 1 or MAX_SENTENCE_CHARACTERS
        parts.append(sentence[:cut].strip())
        sentence = sentence[cut:].strip()
    return [*parts, sentence] if sentence else parts
